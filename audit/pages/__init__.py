"""Pages of the audit app."""
