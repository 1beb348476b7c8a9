"""Secrets are masked alike in everything that either side writes: logs of master and agent, and engine logs."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from agent.common.redaction import redact
from agent.logs import LogFile
from agent.server.logs import JsonFormatter, ReadableFormatter
from mirbad.kernel.logs import _RedactingFormatter

pytestmark = pytest.mark.unit

NAMES = ("password", "passwd", "passphrase", "token", "secret", "api_key", "api-key", "apikey", "API key", "hub-token")
FORMS = (
    '{{"{name}": "{value}"}}',
    '{name}="{value}',
    "{name}={value}",
    "{name}: {value}",
    "--{name}={value}",
    "{name} = '{value}'",
    'MY_{name}="{value}"',
)
BARE = (
    "ssk_0123456789",
    "hf_abcdefghij",
    "mbt_abcdefghij",
    "Bearer abcdefgh.ijkl",
    "bearer=abcdefghijkl",
    "token abcdefghijkl1",
    "secret\tabcdefghijkl1",
    "A" * 20 + "b" * 23,
    "-----BEGIN PRIVATE KEY-----MIGHAgEA-----END PRIVATE KEY-----",
    "-----BEGIN EC PRIVATE KEY-----MIGHAgEA and no end",
)
READABLE = (
    "key fingerprint " + "0123456789abcdef" * 4,
    "token bucket emptied",
    "max_tokens=2048 of 4096 tokens",
    "the secret of node gpu-box-1 was not sent",
    "models/Qwen2.5-0.5B-Instruct/model.safetensors",
)


def _record(text: str) -> logging.LogRecord:
    return logging.LogRecord("agent", logging.INFO, "here", 1, "%s", (text,), None)


def _engine_line(text: str, folder: Path) -> str:
    path = folder / "engine.log"
    path.write_text(f"{text}\n")
    return "\n".join(LogFile(path).tail(10).lines)


WRITERS: dict[str, Callable[[str, Path], str]] = {
    "the shared rule": lambda text, _: redact(text),
    "the agent's readable log": lambda text, _: ReadableFormatter().format(_record(text)),
    "the agent's JSON log": lambda text, _: JsonFormatter().format(_record(text)),
    "an engine's log": _engine_line,
    "the master's log": lambda text, _: _RedactingFormatter(structlog.processors.JSONRenderer()).format(_record(text)),
}


@pytest.fixture(params=WRITERS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """A function: a text as one of the writers writes it."""
    return lambda text: WRITERS[request.param](text, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_the_value_of_a_secret_name_is_masked_in_each_form(written: Callable[[str], str], form: str) -> None:
    for name in NAMES:
        for value in ("hunter2", "x", "1234"):
            line = written(form.format(name=name, value=value) + " and more")
            assert f"{value} and" not in line.replace("'", "").replace('"', "").replace("\\", ""), line
            assert "***" in line
            assert "and more" in line


@pytest.mark.parametrize("text", BARE)
def test_a_secret_without_a_name_is_masked(written: Callable[[str], str], text: str) -> None:
    line = written(f"got {text}")
    assert text not in line
    assert "abcdefgh" not in line
    assert "MIGHAgEA" not in line
    assert "***" in line


@pytest.mark.parametrize("text", READABLE)
def test_other_text_stays_as_it_is(written: Callable[[str], str], text: str) -> None:
    assert text in written(text)


def test_known_values_are_masked_unless_they_are_too_short() -> None:
    assert (
        redact("key is verysecret or abcd, not abc", ("verysecret", "abcd", "abc", "")) == "key is *** or ***, not abc"
    )


def test_masking_a_masked_text_changes_nothing() -> None:
    once = redact("password=hunter2 bearer abcdefghij token abcdefghijkl1 " + "A1" * 30)
    assert redact(once) == once


@pytest.mark.parametrize(
    "piece", ["a-", "token-", "token ", "token=", "a_b", 'token="', "bearer ", "-----BEGIN A-----"]
)
def test_a_hostile_line_costs_time_in_proportion_to_its_length(piece: str) -> None:
    began = time.perf_counter()
    redact(piece * (512 * 1024 // len(piece)))
    assert time.perf_counter() - began < 2
