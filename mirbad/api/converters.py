"""Path converters of ``/api``: a malformed id is a 404, not an error of the database."""

from django.urls import register_converter
from django.urls.converters import get_converters


class RowId:
    """A database id: up to 18 digits, so that it fits a column of 64 bits."""

    regex = "[1-9][0-9]{0,17}"

    def to_python(self, value: str) -> int:
        """Return the number."""
        return int(value)

    def to_url(self, value: int) -> str:
        """Return the text."""
        return str(value)


class Name:
    """An id of a node, model or operation: all that the kernel's rules allow, and a little more."""

    regex = "[A-Za-z0-9][A-Za-z0-9._-]{0,79}"

    def to_python(self, value: str) -> str:
        """Return the text unchanged."""
        return value

    def to_url(self, value: str) -> str:
        """Return the text unchanged."""
        return value


class FolderName(Name):
    """The name of a model folder."""

    regex = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"


def register() -> None:
    """Register ``<row:…>``, ``<name:…>`` and ``<folder:…>``; a second call changes nothing."""
    for name, converter in (("row", RowId), ("name", Name), ("folder", FolderName)):
        if name not in get_converters():
            register_converter(converter, name)
