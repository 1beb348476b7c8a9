"""Asks the running master as a stranger would: health, and one streamed chat over ``/v1``."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

from mirbad.kernel.conf import settings


class Refused(Exception):
    """``/v1`` answered with something else than a stream; the text is what it said."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"{status}: {words}")
        self.status = status


def _connection(timeout_seconds: float) -> http.client.HTTPConnection:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings().bind, settings().bind)  # noqa: S104  compared, not bound
    return http.client.HTTPConnection(host, settings().port, timeout=timeout_seconds)


def _headers() -> dict[str, str]:
    # by a name that is always allowed, whatever address the port is bound to
    return {"Host": f"127.0.0.1:{settings().port}"}


def unready_reasons() -> list[str]:
    """Why ``/readyz`` is not content; empty when it is."""
    connection = _connection(3)
    try:
        connection.request("GET", "/readyz", headers=_headers())
        body = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return ["The web process does not answer yet."]
    finally:
        connection.close()
    return [str(reason) for reason in body.get("reasons", [])] if isinstance(body, dict) else []


def stream_chat(model: str, key: str, text: str, timeout_seconds: float) -> Iterator[str]:
    """The words of one streamed answer, as they come. Raises Refused, OSError or HTTPException."""
    connection = _connection(timeout_seconds)
    body = {"model": model, "stream": True, "max_tokens": 24, "messages": [{"role": "user", "content": text}]}
    headers = {**_headers(), "Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise Refused(answer.status, _words(answer.read(4096)))
        yield from _deltas(answer)
    finally:
        connection.close()


def _deltas(answer: http.client.HTTPResponse) -> Iterator[str]:
    for line in answer:
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            raise Refused(answer.status, str(event["error"].get("message", event["error"])))
        for choice in event.get("choices", []):
            if text := choice.get("delta", {}).get("content"):
                yield str(text)


def _words(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
