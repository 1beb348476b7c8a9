"""The Python libraries of OpenAI and Anthropic: ``python sdk.py openai|anthropic URL KEY MODEL IDLE,IDLE``.

Run as a script, by the Python that has the library. It prints one JSON line: "ok" or the failure, by case.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_ASK: list[Any] = [{"role": "user", "content": "Say hello."}]
_TOKENS = 8


class _OpenAi:
    """OpenAI's client with its defaults: retries, pool, time limits."""

    def __init__(self, url: str, key: str, model: str) -> None:
        import openai

        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
        self.model = model
        self.missing: type[Exception] = openai.NotFoundError
        self.refused: type[Exception] = openai.AuthenticationError

    def chat(self, model: str = "", key: str = "", **more: Any) -> str:
        """Return the text of a whole response."""
        client = self.client.with_options(api_key=key) if key else self.client
        found = client.chat.completions.create(model=model or self.model, messages=_ASK, max_tokens=_TOKENS, **more)
        assert found.usage is not None
        assert found.usage.completion_tokens > 0
        return str(found.choices[0].message.content)

    def stream(self) -> Iterator[str]:
        """Yield the pieces of a stream."""
        kept = self.client.chat.completions.create(model=self.model, messages=_ASK, max_tokens=_TOKENS, stream=True)
        with kept:
            for chunk in kept:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content

    def large(self) -> str:
        """Return the response to a body of 300 kB."""
        return self.chat(user="x" * 300_000)

    def check_error(self, error: Any) -> None:
        """Check the members that the library reads from an error body."""
        assert error.code == "model_not_found", error.code
        assert error.type == "invalid_request_error", error.type
        assert error.param == "model", error.param


class _Anthropic:
    """Anthropic's client with its defaults."""

    def __init__(self, url: str, key: str, model: str) -> None:
        import anthropic

        self.client = anthropic.Anthropic(base_url=url, api_key=key)
        self.model = model
        self.missing: type[Exception] = anthropic.NotFoundError
        self.refused: type[Exception] = anthropic.AuthenticationError

    def chat(self, model: str = "", key: str = "", **more: Any) -> str:
        """Return the text of a whole response."""
        client = self.client.with_options(api_key=key) if key else self.client
        found = client.messages.create(model=model or self.model, messages=_ASK, max_tokens=_TOKENS, **more)
        assert found.usage.output_tokens > 0
        return str(found.content[0].text)

    def stream(self) -> Iterator[str]:
        """Yield the pieces of a stream."""
        with self.client.messages.stream(model=self.model, messages=_ASK, max_tokens=_TOKENS) as kept:
            yield from kept.text_stream

    def large(self) -> str:
        """Return the response to a body of 300 kB."""
        return self.chat(metadata={"user_id": "x" * 300_000})

    def check_error(self, error: Any) -> None:
        """Check the members that the library reads from an error body."""
        assert error.body["type"] == "error", error.body
        assert error.body["error"]["type"] == "not_found_error", error.body


def _refused(client: Any) -> None:
    began = time.monotonic()
    try:
        client.chat(model="no-such-model")
    except client.missing as error:
        client.check_error(error)
    else:
        raise AssertionError("a model that does not exist was answered")
    try:
        client.chat(key="ssk_wrong")
    except client.refused:
        assert time.monotonic() - began < 10, "the errors were repeated"
        return
    raise AssertionError("a wrong key was answered")


def _whole_stream(client: Any) -> None:
    pieces = list(client.stream())
    assert len(pieces) > 1, pieces


def _leave(client: Any) -> None:
    stream = client.stream()
    next(stream)
    stream.close()
    assert client.chat()


def _again(client: Any, seconds: float) -> None:
    threading.Event().wait(seconds)
    assert client.chat()
    _whole_stream(client)


def main(library: str, url: str, key: str, model: str, idle: str) -> dict[str, str]:
    """Return the outcome of every case, in turn."""
    client = (_OpenAi if library == "openai" else _Anthropic)(url, key, model)
    cases: dict[str, Callable[[], object]] = {
        "chat": client.chat,
        "stream": lambda: _whole_stream(client),
        "error": lambda: _refused(client),
        "large body": client.large,
        "leave": lambda: _leave(client),
        **{f"idle {seconds} s": lambda seconds=seconds: _again(client, float(seconds)) for seconds in idle.split(",")},
    }
    found = {}
    for name, case in cases.items():
        try:
            case()
            found[name] = "ok"
        except Exception as error:  # noqa: BLE001  whatever a library makes of it is reported
            found[name] = f"{type(error).__name__}: {str(error)[:300]}"
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
