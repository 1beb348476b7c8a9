"""Long lists of ``/api``: what a serializer prints, with less work for each row.

A serializer asks every field anew, for every row, where its value is and what form it has. Here that is asked once a
list. Fields of a kind that is not known here are left to themselves, so no list loses one.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from rest_framework import serializers
from rest_framework.fields import SkipField, _UnvalidatedField

from mirbad.api.serializers import CamelSerializer

Print = Callable[[Any], Any]


def rows(serializer: type[CamelSerializer], found: Iterable[Any], **context: Any) -> list[dict[str, Any]]:
    """What ``serializer(found, many=True, context=context).data`` holds. Rows are objects, not mappings."""
    write = printer(serializer(context=context))
    return [write(row) for row in found]


def printer(bound: CamelSerializer) -> Callable[[Any], dict[str, Any]]:
    """A function that prints one object as `bound` would."""
    steps = [(name, _step(field)) for name, field in bound.fields.items() if not field.write_only]

    def write(row: Any) -> dict[str, Any]:
        printed = {}
        for name, step in steps:
            try:
                printed[name] = step(row)
            except SkipField:
                continue
        return printed

    return write


def _step(field: serializers.Field[Any, Any, Any, Any]) -> Print:
    if type(field) is serializers.SerializerMethodField:
        method: Print = getattr(field.parent, str(field.method_name))
        return method
    form = _form(field)
    if form is None or len(field.source_attrs) != 1:
        return _as_ever(field)
    look = attrgetter(field.source_attrs[0])

    def step(row: Any) -> Any:
        value = look(row)
        return None if value is None else form(value)

    return step


def _form(field: serializers.Field[Any, Any, Any, Any]) -> Print | None:
    kind = type(field)
    if kind is serializers.DateTimeField:
        return _moment(field)
    if isinstance(field, serializers.DictField) and kind is serializers.DictField:
        # JSON of the database, without a form of its own: nothing in it changes.
        return _same if type(field.child) is _UnvalidatedField else field.to_representation
    return _FORMS.get(kind)


def _moment(field: serializers.Field[Any, Any, Any, Any]) -> Print:
    def form(value: datetime) -> Any:
        if value.tzinfo is not UTC:
            return field.to_representation(value)
        return value.isoformat().removesuffix("+00:00") + "Z"

    return form


def _as_ever(field: serializers.Field[Any, Any, Any, Any]) -> Print:
    def step(row: Any) -> Any:
        value = field.get_attribute(row)
        return None if value is None else field.to_representation(value)

    return step


def _same(value: Any) -> Any:
    return value


_FORMS: dict[type, Print] = {
    serializers.CharField: str,
    serializers.ChoiceField: str,
    serializers.IntegerField: int,
    serializers.BooleanField: bool,
    serializers.UUIDField: str,
}
