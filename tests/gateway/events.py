"""Events of streams, as engines send them and as tests ask for them."""

import json

from tests.gateway.downstream import ask

STREAM = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}\n\n'
DONE = b"data: [DONE]\n\n"


def delta(text, **more):
    """One event with a piece of text; bytes as `json` writes them, but the text as it is."""
    choices = [{"index": 0, "delta": {"content": text}}]
    return b"data: " + json.dumps({"id": "c", "choices": choices, **more}, ensure_ascii=False).encode() + b"\n\n"


def usage(prompt, completion):
    return b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % (prompt, completion)


def streamed(fleet, *pieces, body=None):
    async def script(seen):
        await seen.events(*pieces)

    fleet.engine.script = script
    return ask(fleet, body or STREAM)[1]


def counted(fleet):
    return sum(value for (model_id, kind), value in fleet.metrics.tokens.items() if model_id == "m")
