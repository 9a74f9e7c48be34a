"""Boxes: what they are, where they are kept, and every verb the product has for them."""
