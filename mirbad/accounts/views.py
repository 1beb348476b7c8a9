"""The base of the views of ``/api``: the caller is known, refusals are audited."""

from collections.abc import Mapping
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from audit import log as audit
from mirbad.accounts import actors
from mirbad.api import problems
from mirbad.kernel.actor import Actor
from mirbad.kernel.roles import OPERATOR, VIEWER, Role

_UNAUTHENTICATED = 401


class AdminView(APIView):
    """Looks up with permission, parses, makes one call, responds.

    `audited` names the audit action of each writing method: its refusal is recorded, with the ids of the URL. A caller
    who is not signed in is not recorded, or strangers could fill the log.
    """

    read_role: ClassVar[Role] = VIEWER
    required_role: ClassVar[Role] = OPERATOR
    audited: ClassVar[Mapping[str, str]] = {}

    @property
    def actor(self) -> Actor:
        """Return the actor of the request."""
        return actors.of(self.request)

    def handle_exception(self, exc: Exception) -> Response:
        """Audit a refusal, then respond with problem+json."""
        error = problems.named(exc)
        action = self.audited.get(self.request.method or "")
        response = super().handle_exception(exc)
        if error is not None and action and response.status_code != _UNAUTHENTICATED:
            audit.record_refusal(
                action,
                self.actor,
                error,
                node_id=str(self.kwargs.get("node_id", "")),
                model_id=str(self.kwargs.get("model_id", "")),
                operation_id=str(self.kwargs.get("operation_id", "")),
                target=str(self.kwargs.get("row_id", "")),
            )
        return response

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Forbid caches to store any of ``/api``."""
        super().initial(request, *args, **kwargs)
        self.headers["Cache-Control"] = "no-store"
