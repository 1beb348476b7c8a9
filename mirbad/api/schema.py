"""Additions to the published schema: authentication, and the errors of every route."""

from typing import Any, Literal

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiResponse

from mirbad.api.problems import CONTENT_TYPE
from mirbad.api.serializers import ProblemSerializer

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class AdminTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # the library's own hook
    """``Authorization: Bearer mbt_…`` in the schema."""

    target_class = "mirbad.accounts.authentication.AdminTokenAuthentication"
    name = "adminToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        """Return the security scheme object."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "mbt_…"}


class ProblemSchema(AutoSchema):
    """Adds problem+json responses to every operation, depending on its method."""

    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        codes = ["400", "401", "403", "404", "406", "500", "503"]
        if self.method not in _SAFE:
            codes += ["409", "413", "415", "422", "429", "502", "504"]
        elif getattr(self.view, "asks_nodes", False):
            # the route calls the node, which may be pending or refuse
            codes += ["409", "422", "502"]
        for code in codes:
            if code not in bodies:
                bodies[code] = self._get_response_for_code(  # type: ignore[no-untyped-call]
                    OpenApiResponse(ProblemSerializer), code, media_types=[CONTENT_TYPE], direction=direction
                )
        return dict(sorted(bodies.items()))
