"""Pages of a list: ``?limit=&offset=``, at most 1000 rows."""

from typing import Any

from rest_framework.pagination import LimitOffsetPagination
from rest_framework.request import Request
from rest_framework.response import Response

from mirbad.api.parameters import whole_number

MAX_LIMIT = 1000
MAX_OFFSET = 1_000_000_000


class Page(LimitOffsetPagination):
    """The body of every list: ``{count, next, previous, items}``; one statement counts, one reads."""

    default_limit = 100
    max_limit = MAX_LIMIT

    def get_limit(self, request: Request) -> int:
        """Return the number of rows. Raises InvalidRequest rather than guess."""
        return whole_number(request, "limit", self.default_limit, lowest=1, highest=MAX_LIMIT)

    def get_offset(self, request: Request) -> int:
        """Return the number of rows to skip. Raises InvalidRequest rather than guess."""
        return whole_number(request, "offset", 0, lowest=0, highest=MAX_OFFSET)

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """Return the parameters for the published schema."""
        limit = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": self.default_limit}
        offset = {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET, "default": 0}
        return [
            {"name": "limit", "in": "query", "required": False, "description": "Rows per page.", "schema": limit},
            {"name": "offset", "in": "query", "required": False, "description": "Rows to skip.", "schema": offset},
        ]

    def get_paginated_response(self, data: Any) -> Response:
        """Return one page and the addresses of its neighbours."""
        return Response(
            {"count": self.count, "next": self.get_next_link(), "previous": self.get_previous_link(), "items": data}
        )

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of a page, for the published schema."""
        link = {"type": "string", "format": "uri", "nullable": True}
        return {
            "type": "object",
            "required": ["count", "next", "previous", "items"],
            "properties": {"count": {"type": "integer"}, "next": link, "previous": link, "items": schema},
        }
