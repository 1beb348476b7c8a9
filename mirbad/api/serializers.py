"""Serializers of ``/api``: snake_case inside, camelCase outside, unknown members refused."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from mirbad.kernel.errors import InvalidRequest


def to_camel(name: str) -> str:
    """Return ``display_name`` as ``displayName``."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class CamelSerializer(serializers.Serializer[Any]):
    """Declared in snake_case, read and printed in camelCase. An unknown member is refused, not ignored."""

    def get_fields(self) -> dict[str, Any]:
        """Return the declared fields under their outer names."""
        fields: dict[str, Any] = {}
        for name, field in super().get_fields().items():
            outer = to_camel(name)
            if outer != name and field.source is None:
                field.source = name
            fields[outer] = field
        return fields

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated values in snake_case."""
        if isinstance(data, Mapping):
            unknown = [name for name in data if name not in self.fields]
            if unknown:
                raise serializers.ValidationError(
                    {name: [serializers.ErrorDetail("Unknown member.", code="unknown_member")] for name in unknown}
                )
        return super().to_internal_value(data)


def read(serializer: type[CamelSerializer], data: Any, *, partial: bool = False) -> dict[str, Any]:
    """Return the validated values of a body, in snake_case. Raises InvalidRequest or ValidationError (both 400)."""
    if not isinstance(data, Mapping):
        raise InvalidRequest("The body must be a JSON object.")
    bound = serializer(data=data, partial=partial)
    bound.is_valid(raise_exception=True)
    return dict(bound.validated_data)


class ProblemItemSerializer(CamelSerializer):
    """One broken rule of a request."""

    code = serializers.CharField()
    message = serializers.CharField()
    field = serializers.CharField(required=False)


class ProblemSerializer(CamelSerializer):
    """RFC 9457 problem+json, with the machine code in `code`."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField()
    detail = serializers.CharField()
    problems = ProblemItemSerializer(many=True, required=False)
