"""Query parameters of ``/api``: parsed or refused, never guessed."""

from collections.abc import Collection

from rest_framework.request import Request

from mirbad.kernel.errors import InvalidRequest


def whole_number(request: Request, name: str, default: int, *, lowest: int, highest: int) -> int:
    """Return the parameter `name` as an integer within bounds, `default` when it is absent. Raises InvalidRequest."""
    sent = request.query_params.get(name)
    if sent is None:
        return default
    if not sent.isascii() or not sent.isdigit() or len(sent) > len(str(highest)) or not lowest <= int(sent) <= highest:
        message = f"{name} must be a whole number from {lowest} to {highest}."
        raise InvalidRequest(message, problems=[{"code": "out_of_range", "message": message, "field": name}])
    return int(sent)


def flag(request: Request, name: str) -> bool:
    """Return the parameter `name` as a boolean (absent is false). Raises InvalidRequest."""
    sent = request.query_params.get(name, "false")
    if sent not in ("true", "false"):
        message = f"{name} must be true or false."
        raise InvalidRequest(message, problems=[{"code": "invalid", "message": message, "field": name}])
    return sent == "true"


def choice(request: Request, name: str, among: Collection[str]) -> str:
    """Return the parameter `name` as one of `among`, "" when it is absent. Raises InvalidRequest."""
    sent = request.query_params.get(name, "")
    if sent and sent not in among:
        message = f"{name} must be one of {', '.join(sorted(among))}."
        raise InvalidRequest(message, problems=[{"code": "invalid", "message": message, "field": name}])
    return sent


def identity(request: Request, name: str) -> str:
    """Return the parameter `name` as an id, "" when it is absent. Raises InvalidRequest for a malformed one."""
    sent = request.query_params.get(name, "")
    if len(sent) > 100 or not sent.isprintable():
        message = f"{name} contains characters that are not allowed in an id."
        raise InvalidRequest(message, problems=[{"code": "invalid", "message": message, "field": name}])
    return sent
