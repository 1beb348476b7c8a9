"""A smoke test of the running master: health, and one streamed chat over ``/v1``."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

from mirbad.kernel.conf import settings


class RequestRefused(Exception):
    """``/v1`` sent no stream; the text is its error."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"{status}: {words}")
        self.status = status


def _connection(timeout_seconds: float) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(settings().local_host, settings().port, timeout=timeout_seconds)


def _headers() -> dict[str, str]:
    # a host name that is always allowed, whatever address the port is bound to
    return {"Host": f"127.0.0.1:{settings().port}"}


def is_alive() -> bool:
    """Return whether the web process answers."""
    connection = _connection(3)
    try:
        connection.request("GET", "/healthz", headers=_headers())
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def unready_reasons() -> list[str]:
    """Return the reasons of ``/readyz`` why the master is not ready; empty when it is."""
    connection = _connection(3)
    try:
        connection.request("GET", "/readyz", headers=_headers())
        body = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return ["The web process does not respond yet."]
    finally:
        connection.close()
    return [str(reason) for reason in body.get("reasons", [])] if isinstance(body, dict) else []


def stream_chat(model: str, key: str, text: str, timeout_seconds: float) -> Iterator[str]:
    """Yield the pieces of one streamed completion. Raises RequestRefused, OSError or HTTPException."""
    connection = _connection(timeout_seconds)
    body = {"model": model, "stream": True, "max_tokens": 24, "messages": [{"role": "user", "content": text}]}
    headers = {**_headers(), "Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise RequestRefused(answer.status, _words(answer.read(4096)))
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
            raise RequestRefused(answer.status, str(event["error"].get("message", event["error"])))
        for choice in event.get("choices", []):
            if text := choice.get("delta", {}).get("content"):
                yield str(text)


def _words(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
