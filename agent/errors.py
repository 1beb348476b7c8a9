"""The one error of the agent that a caller sees."""

from collections.abc import Mapping
from typing import Any

from agent.wire.errors import HTTP_STATUS, AgentCode, Refusal


class AgentError(Exception):
    """A refusal with its code, a sentence for a person, and further fields."""

    def __init__(self, code: AgentCode, detail: str, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.fields = dict(fields or {})

    @property
    def http_status(self) -> int:
        """The status of the answer that carries it."""
        return HTTP_STATUS[self.code]

    def to_refusal(self) -> Refusal:
        """The body of the answer."""
        return Refusal(code=self.code, detail=self.detail, fields=self.fields)
