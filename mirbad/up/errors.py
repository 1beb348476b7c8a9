"""Why `make up` does not start."""


class CannotStart(Exception):
    """Something outside Mirbad stands in the way; the text is one line that says what to change."""
