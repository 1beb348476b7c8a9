"""Checks of a client library against the API: ``python gateway_client_checks.py openai|litellm KEY CHAT EMBED TOOLS``.

The last three are base URLs. Run as a script, by the Python that has the library. It prints one JSON line: "ok" or
the failure, by check.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

_ASK = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "temperature": 0, "max_tokens": 24}
_TOOLS = {
    "messages": _ASK["messages"],
    "temperature": 0,
    "max_tokens": 96,
    "tool_choice": "required",
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather in a city",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
                    "required": ["city"],
                },
            },
        }
    ],
}
_TEXTS = ["The sun is warm.", "Ships sail on water."]


class Failed(Exception):
    """A check failed; the text has the unexpected values."""


def _hold(true: object, *said: object) -> None:
    if not true:
        raise Failed(" ".join(map(repr, said)))


def _chat(create: Callable[..., Any]) -> str:
    answer = create(**_ASK)
    _hold(answer.choices[0].message.content, answer)
    _hold(answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0, answer.usage)
    return str(answer.choices[0].message.content)


def _streamed(create: Callable[..., Any]) -> None:
    parts, reasons = [], []
    for chunk in create(stream=True, **_ASK):
        if chunk.choices:  # a client that did not request usage gets no usage event
            parts.append(chunk.choices[0].delta.content or "")
            reasons.append(chunk.choices[0].finish_reason)
    _hold(len(parts) > 2, parts)
    _hold([reason for reason in reasons if reason], reasons)
    plain = _chat(create)
    _hold("".join(parts) == plain, "".join(parts), plain)


def _usage(create: Callable[..., Any]) -> None:
    chunks = list(create(stream=True, stream_options={"include_usage": True}, **_ASK))
    told = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    _hold(told and told[-1].prompt_tokens > 0, chunks[-2:])


def _called(name: str | None, arguments: str) -> None:
    _hold(name == "weather", name)
    _hold(json.loads(arguments)["city"] in ("Paris", "Rome"), arguments)


def _tools(create: Callable[..., Any]) -> None:
    answer = create(**_TOOLS)
    _hold(answer.choices[0].message.tool_calls, answer)
    call = answer.choices[0].message.tool_calls[0].function
    _called(call.name, call.arguments)


def _tools_streamed(create: Callable[..., Any]) -> None:
    name, arguments = None, ""
    for chunk in create(stream=True, **_TOOLS):
        for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            name = name or call.function.name
            arguments += call.function.arguments or ""
    _called(name, arguments)


def _embeddings(embed: Callable[..., Any]) -> None:
    found = embed(input=_TEXTS).data
    vectors = [one["embedding"] if isinstance(one, dict) else one.embedding for one in found]
    _hold(len(vectors) == len(_TEXTS) and len(vectors[0]) == len(vectors[1]) > 100, len(vectors))
    _hold(abs(sum(value * value for value in vectors[0]) - 1) < 0.01, "not of length one")
    _hold(vectors[0] != vectors[1], "the same vector twice")


def _refused(create: Callable[..., Any], error: type[Exception]) -> None:
    try:
        create(**(_ASK | {"model": "openai/other" if error.__module__.startswith("litellm") else "other"}))
    except error:
        return
    raise Failed("a model that does not exist was answered")


Calls = tuple[dict[str, Callable[..., Any]], type[Exception]]
"""Functions that create a chat, a chat with tools and embeddings; the error for a model that does not exist."""


def _openai(key: str, chat: str, embed: str, tools: str) -> Calls:
    import openai

    def client(url: str) -> Any:
        return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=120)

    def create(url: str) -> Callable[..., Any]:
        made = client(url)
        return lambda **more: made.chat.completions.create(**{"model": "m", **more})

    calls = {
        "chat": create(chat),
        "tools": create(tools),
        "embed": partial(client(embed).embeddings.create, model="m"),
        "models": client(chat).models.list,
    }
    return calls, openai.NotFoundError


def _litellm(key: str, chat: str, embed: str, tools: str) -> Calls:
    import litellm

    common = {"api_key": key, "num_retries": 0, "timeout": 120}

    def create(**more: Any) -> Any:
        return litellm.completion(**{"model": "openai/m", "api_base": chat, **common, **more})

    calls = {
        "chat": create,
        "tools": partial(create, api_base=tools),
        "embed": partial(litellm.embedding, model="openai/m", api_base=embed, **common),
    }
    return calls, litellm.NotFoundError


def main(library: str, key: str, chat: str, embed: str, tools: str) -> dict[str, str]:
    """Every check, in turn."""
    calls, missing = (_openai if library == "openai" else _litellm)(key, chat, embed, tools)
    checks: dict[str, Callable[[], object]] = {
        "chat": lambda: _chat(calls["chat"]),
        "streamed": lambda: _streamed(calls["chat"]),
        "usage": lambda: _usage(calls["chat"]),
        "tools": lambda: _tools(calls["tools"]),
        "tools streamed": lambda: _tools_streamed(calls["tools"]),
        "embeddings": lambda: _embeddings(calls["embed"]),
        "refusal": lambda: _refused(calls["chat"], missing),
    }
    if "models" in calls:
        checks = {"models": lambda: _hold([model.id for model in calls["models"]()] == ["m"]), **checks}
    said = {}
    for name, check in checks.items():
        try:
            check()
            said[name] = "ok"
        except Exception as error:  # noqa: BLE001  whatever a library makes of it is told
            said[name] = f"{type(error).__name__}: {str(error)[:300]}"
            sys.stderr.write(f"{name}: {error!r}\n")
    return said


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
