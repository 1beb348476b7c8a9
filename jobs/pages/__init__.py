"""Pages of the jobs app."""
