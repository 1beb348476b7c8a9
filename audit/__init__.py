"""The append-only record of who did what, with which outcome."""
