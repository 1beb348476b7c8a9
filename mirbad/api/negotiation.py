"""Choice of the media type of an answer by the header ``Accept``."""

from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.request import Request


class Negotiation(DefaultContentNegotiation):
    """The framework's choice, by RFC 9110: an empty header accepts everything, weight 0 accepts nothing."""

    def get_accept_list(self, request: Request) -> list[str]:
        """Return the accepted media types, most without their weight."""
        header = request.META.get("HTTP_ACCEPT", "").strip()
        return [token.strip() for token in header.split(",") if not _is_refused(token)] if header else ["*/*"]


def _is_refused(token: str) -> bool:
    for parameter in token.split(";")[1:]:
        name, _, weight = parameter.partition("=")
        if name.strip().lower() == "q":
            return weight.strip().rstrip("0") in ("", "0", "0.") and weight.strip().startswith("0")
    return False
