"""Talking to the agent inside a guest: frames, one link, and what can be asked over it."""
