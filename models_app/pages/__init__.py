"""Pages of the models app."""
