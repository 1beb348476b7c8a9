"""Pages of a list: ``?limit=&offset=``, at most 1000 rows."""

from typing import Any

from rest_framework.pagination import LimitOffsetPagination
from rest_framework.request import Request
from rest_framework.response import Response

from mirbad.kernel.errors import InvalidRequest

MAX_LIMIT = 1000
MAX_OFFSET = 1_000_000_000


def whole_number(request: Request, name: str, default: int, *, lowest: int, highest: int) -> int:
    """The query parameter `name` as an integer within bounds. Raises InvalidRequest."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > len(str(highest)) or not lowest <= int(text) <= highest:
        problem = {"code": "out_of_range", "message": f"Give a whole number, {lowest} to {highest}.", "field": name}
        raise InvalidRequest(f"{name} must be a whole number from {lowest} to {highest}.", problems=[problem])
    return int(text)


class Page(LimitOffsetPagination):
    """The body of every list: ``{count, next, previous, items}``; one statement counts, one reads."""

    default_limit = 100
    max_limit = MAX_LIMIT

    def get_limit(self, request: Request) -> int:
        """How many rows. Raises InvalidRequest rather than guess."""
        return whole_number(request, "limit", self.default_limit, lowest=1, highest=MAX_LIMIT)

    def get_offset(self, request: Request) -> int:
        """How many rows to pass over. Raises InvalidRequest rather than guess."""
        return whole_number(request, "offset", 0, lowest=0, highest=MAX_OFFSET)

    def get_paginated_response(self, data: Any) -> Response:
        """One page and the addresses of its neighbours."""
        return Response(
            {"count": self.count, "next": self.get_next_link(), "previous": self.get_previous_link(), "items": data}
        )

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The shape of a page, for the published schema."""
        link = {"type": "string", "format": "uri", "nullable": True}
        return {
            "type": "object",
            "required": ["count", "next", "previous", "items"],
            "properties": {"count": {"type": "integer"}, "next": link, "previous": link, "items": schema},
        }
