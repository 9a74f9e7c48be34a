"""`make bench`: what we promise, measured, each figure against a baseline of the same run."""
