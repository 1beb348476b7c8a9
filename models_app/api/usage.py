"""``/api/usage``: usage of models by key and day, also as CSV."""

import csv
import io
from collections.abc import Iterator
from datetime import date
from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request

from mirbad.accounts.views import AdminView
from mirbad.api import printing
from mirbad.api.pagination import Page
from mirbad.api.parameters import identity, whole_number
from mirbad.api.serializers import CamelSerializer
from mirbad.kernel.errors import InvalidRequest
from mirbad.kernel.roles import VIEWER
from models_app import usage
from models_app.models import UsageDay

COLUMNS = (
    "day",
    "key",
    "keyName",
    "model",
    "requests",
    "failed",
    "unreported",
    "promptTokens",
    "completionTokens",
)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_MOST = 2**62


class UsageSerializer(CamelSerializer):
    """One key's usage of one model on one UTC day; key 0 is the playground."""

    day = serializers.DateField()
    key = serializers.IntegerField(source="key_number")
    key_name = serializers.SerializerMethodField(method_name="name_of")
    model = serializers.CharField(source="model_id_text")
    requests = serializers.IntegerField()
    failed = serializers.IntegerField(help_text="Requests without a complete response.")
    unreported = serializers.IntegerField(help_text="Requests whose response had no token count.")
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()

    def name_of(self, row: UsageDay) -> str:
        """Return the key's name; the context has `names`."""
        return str(self.context["names"].get(row.key_number, ""))


class _Json(BaseContentNegotiation):
    """JSON whatever is accepted: ``format`` is a parameter of this route."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        """Return the first parser."""
        return parsers[0]

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        """Return the first renderer."""
        return renderers[0], renderers[0].media_type


class UsageView(AdminView):
    """Usage by key, model and day."""

    content_negotiation_class = _Json
    pagination_class = Page
    read_role = VIEWER
    required_role = VIEWER

    @extend_schema(
        operation_id="usage_list",
        parameters=[
            OpenApiParameter("key", int, description="Key id; 0 is the playground."),
            OpenApiParameter("model", str, description="Model id."),
            OpenApiParameter("from", date, description="First UTC day."),
            OpenApiParameter("to", date, description="Last UTC day, included."),
            OpenApiParameter("format", str, enum=["json", "csv"], description="`csv` downloads all rows as a file."),
        ],
        responses={(200, "application/json"): UsageSerializer(many=True), (200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> HttpResponseBase:
        """List usage by day, the latest first."""
        sent = request.query_params
        rows = usage.found(
            key=whole_number(request, "key", 0, lowest=0, highest=_MOST) if "key" in sent else None,
            model=identity(request, "model"),
            start=_day(request, "from"),
            end=_day(request, "to"),
        )
        kind = sent.get("format", "json")
        if kind not in ("json", "csv"):
            raise _bad("format", "format must be json or csv.")
        names = usage.key_names()
        if kind == "csv":
            answer = HttpResponse("".join(lines(rows.iterator(), names)), content_type="text/csv; charset=utf-8")
            answer["Content-Disposition"] = 'attachment; filename="mirbad-usage.csv"'
            return answer
        pages = self.pagination_class()
        page = pages.paginate_queryset(rows, request, view=self)
        return pages.get_paginated_response(printing.rows(UsageSerializer, page or [], names=names))


def lines(rows: Iterator[UsageDay], names: dict[int, str]) -> Iterator[str]:
    """Yield the rows as CSV lines, the header first. A name that a spreadsheet would run as a formula is disarmed."""
    yield _line(COLUMNS)
    for row in rows:
        yield _line(
            (
                row.day.isoformat(),
                row.key_number,
                _plain(names.get(row.key_number, "")),
                _plain(row.model_id_text),
                row.requests,
                row.failed,
                row.unreported,
                row.prompt_tokens,
                row.completion_tokens,
            )
        )


def _line(values: tuple[object, ...]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(values)
    return out.getvalue()


def _plain(text: str) -> str:
    return "'" + text if text.startswith(_FORMULA_STARTS) else text


def _day(request: Request, name: str) -> date | None:
    sent = request.query_params.get(name)
    if sent is None:
        return None
    try:
        return date.fromisoformat(sent)
    except ValueError:
        raise _bad(name, f"{name} must be a date such as 2026-01-31.") from None


def _bad(name: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, problems=[{"code": "invalid", "message": message, "field": name}])
