"""The error of the agent that a caller receives."""

from collections.abc import Mapping
from typing import Any

from agent.wire.errors import HTTP_STATUS, AgentCode, AgentErrorBody


class AgentError(Exception):
    """A refusal with its code, a sentence for a person, and further fields."""

    def __init__(self, code: AgentCode, detail: str, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.fields = dict(fields or {})

    @property
    def http_status(self) -> int:
        """The status of the response."""
        return HTTP_STATUS[self.code]

    def to_body(self) -> AgentErrorBody:
        """Return the body of the response."""
        return AgentErrorBody(code=self.code, detail=self.detail, fields=self.fields)
