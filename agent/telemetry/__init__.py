"""Measurements of this machine. Unknown is None, never 0."""
