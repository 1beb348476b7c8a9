"""Errors of `make up`."""


class CannotStart(Exception):
    """Mirbad cannot start for an external reason; the text is one line with the fix."""
