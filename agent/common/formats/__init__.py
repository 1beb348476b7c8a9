"""File formats of model weights: which files they are, and the facts in their headers."""
