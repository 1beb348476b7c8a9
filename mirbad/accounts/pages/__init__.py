"""Pages of admin tokens."""
