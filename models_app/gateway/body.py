"""The members of a JSON request body that the gateway needs; the rest is not built. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic_core import SchemaValidator, ValidationError, core_schema

from models_app.gateway import errors, members
from models_app.gateway.members import Steps

WHOLE_PARSE_BYTES = 64 * 1024
"""A body up to this size is parsed at once, so that invalid JSON is refused here. Of larger ones only the top level."""
MODEL_BYTES = 1024

_EXACT_BYTES = 16 * 1024
_VALUE_BYTES = 8 * 1024
_NEEDED = ("model", "stream", "stream_options")
_ANY = core_schema.typed_dict_field(core_schema.any_schema(), required=False)
# Builds no other member: one million empty lists take a second to build and four milliseconds to skip.
_READER = SchemaValidator(core_schema.typed_dict_schema(dict.fromkeys(_NEEDED, _ANY), extra_behavior="ignore"))


@dataclass(frozen=True, slots=True)
class BodyPeek:
    """The needed members of `body`, and `body` itself.

    `asks_usage`: its stream ends with the usage as it is. If not, `options_at` is where ``stream_options`` is, None
    without.
    """

    model: str
    stream: bool
    body: bytes | bytearray
    asks_usage: bool = False
    options: Mapping[str, Any] | None = None
    options_at: tuple[int, int] | None = None


def peek(body: bytes | bytearray) -> BodyPeek:
    """Return the model and stream members of a JSON request. Raises GatewayError (400) naming the invalid member."""
    return _peek_at_once(body) or members.run(_peek_by_walking(body))


def peek_in_steps(body: bytes | bytearray) -> Steps[BodyPeek]:
    """Do the same as `peek`, with a pause after each millisecond. A body up to `WHOLE_PARSE_BYTES` takes one step."""
    return _peek_at_once(body) or (yield from _peek_by_walking(body))


def _peek_at_once(body: bytes | bytearray) -> BodyPeek | None:
    """Return the members of a small body, as nearly all are; None when the walk has to find them."""
    found = _parse(body) if len(body) <= WHOLE_PARSE_BYTES else None
    if found is None or ("stream_options" in found and not _asks_usage(found)):
        return None
    return _checked(found, body, None)


def _peek_by_walking(body: bytes | bytearray) -> Steps[BodyPeek]:
    found, places = yield from _walk(body)
    return _checked(found, body, places.get("stream_options"))


def _checked(found: dict[str, Any], body: bytes | bytearray, options_at: tuple[int, int] | None) -> BodyPeek:
    model = found.get("model")
    if model is None:
        raise errors.bad_request("Set 'model' to the name of a model.", "model", "model_required")
    if not isinstance(model, str) or not model:
        raise errors.bad_request("'model' must be a non-empty string.", "model")
    if len(model) > MODEL_BYTES:
        raise _too_long("model", MODEL_BYTES)
    stream = found.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise errors.bad_request("'stream' must be true or false.", "stream")
    options = found.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise errors.bad_request("'stream_options' must be an object.", "stream_options")
    return BodyPeek(model, bool(stream), body, _asks_usage(found), options, options_at)


def _asks_usage(found: dict[str, Any]) -> bool:
    options = found.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def with_usage(peek: BodyPeek) -> bytes | bytearray:
    """Return the body with a request for usage at the end of the stream. A bytearray is changed in place."""
    body = peek.body
    if peek.options_at is not None:
        start, end = peek.options_at
        added = json.dumps({**(peek.options or {}), "include_usage": True}).encode()
    else:
        start = end = body.index(b"{") + 1
        following = members.NOT_SPACE.search(body, start)
        comma = b"" if following is not None and following.group() == b"}" else b","
        added = b"".join((b'"stream_options":{"include_usage":true}', comma))
    if isinstance(body, bytearray):
        body[start:end] = added
        return body
    return b"".join((body[:start], added, body[end:]))


def _parse(body: bytes | bytearray) -> dict[str, Any] | None:
    """Return the needed members. None: the walk must decide, because an exact parse could take long."""
    if body.count(b":") > members.MAX_MEMBERS:
        return None  # it may have too many members, which the walk counts
    if b"NaN" not in body and b"Infinity" not in body:
        try:
            found: dict[str, Any] = _READER.validate_json(body)
        except ValidationError:
            pass
        else:
            return found
    return _parse_exactly(body) if len(body) <= _EXACT_BYTES else None


def _parse_exactly(body: bytes | bytearray) -> dict[str, Any]:
    """Parse with the slower reader that accepts lone surrogates and reports where an error is."""
    try:
        value = _DECODER.decode(body.decode())
    except UnicodeDecodeError:
        raise errors.bad_request("The body is not UTF-8. Encode the JSON as UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise errors.bad_request("The body is nested too deeply. Use fewer levels.", code="invalid_json") from None
    except json.JSONDecodeError as error:
        message = f"The body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        raise errors.bad_request(message, code="invalid_json") from None
    except ValueError:
        raise errors.bad_request("The body contains a number with too many digits.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise errors.bad_request("The body must be a JSON object.", code="invalid_json")
    return value


def _no_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is not JSON", "", 0)


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _walk(body: bytes | bytearray) -> Steps[tuple[dict[str, Any], dict[str, tuple[int, int]]]]:
    """Return the needed members of an object and their places. The last of a name wins, as in every JSON parser."""
    found: dict[str, Any] = {}
    try:
        places = yield from members.find(body, frozenset(_NEEDED))
        for name, (start, end) in places.items():
            if end - start > _VALUE_BYTES:
                raise _too_long(name, _VALUE_BYTES)
            found[name] = _DECODER.decode(body[start:end].decode())
    except (members.NotAnObject, RecursionError) as error:
        message = f"The body is not a JSON object that can be read: {error}."
        raise errors.bad_request(message, code="invalid_json") from None
    except ValueError:
        raise errors.bad_request(f"The value of {name!r} is not valid JSON.", name, "invalid_json") from None
    return found, places


def _too_long(name: str, limit: int) -> errors.GatewayError:
    return errors.bad_request(f"{name!r} exceeds {limit} bytes.", name)
