"""Safetensors headers: metadata of any kind, and the program that reads a long header."""

import json
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.common.formats import safetensors

pytestmark = pytest.mark.unit

TENSOR = b'"blk.experts.1":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}'
SUMS = {"tensors": 1, "tensor_bytes": 4, "expert_bytes": 4, "by_type": {"BF16": 4}}


@pytest.mark.parametrize("metadata", [b"null", b"5", b"1.5e3", b'"a,b"', b"[1,[2]]", b'{"a":{"b":"}"}}'])
@pytest.mark.parametrize("space", [b"", b" \r\n\t"])
def test_metadata_of_any_kind_is_passed_over(metadata: bytes, space: bytes) -> None:
    entry = b'"__metadata__":' + space + metadata + space
    for data in (b"{" + entry + b"," + TENSOR + b"}", b"{" + TENSOR + b"," + entry + b"}"):
        assert vars(safetensors.summed(data)) == SUMS


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The limits that the program sets for its process; this one keeps its own."""
    found: list[Any] = []
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: found.append(limit))
    monkeypatch.setattr(os, "nice", found.append)
    return found


@pytest.fixture
def printed(limits: list[Any], capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """A function: what the program prints."""

    def call(verb: str, path: Path) -> Any:
        safetensors.main(verb, str(path))
        return json.loads(capsys.readouterr().out)

    return call


def test_the_program_prints_the_sums_of_a_header(printed: Callable[..., Any], tmp_path: Path) -> None:
    header = b"{" + TENSOR + b"}"
    (tmp_path / "a").write_bytes(struct.pack("<Q", len(header)) + header)
    assert printed("sums", tmp_path / "a") == SUMS


def test_the_program_prints_the_files_of_an_index(printed: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a").write_text(json.dumps({"weight_map": {"x": "b", "y": "a", "z": "b"}}))
    assert printed("index", tmp_path / "a") == ["a", "b"]


def test_the_program_prints_why_it_could_not_read(printed: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(struct.pack("<Q", 9))
    assert printed("sums", tmp_path / "a") == {"problem": "The file is cut short in its header."}
    assert printed("index", tmp_path / "a") == {"problem": ""}
    assert printed("sums", tmp_path / "none") == {"errno": 2}


def test_the_program_takes_a_gibibyte_and_lets_requests_go_first(
    printed: Callable[..., Any], limits: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed("sums", tmp_path / "none")
    assert limits == [(resource.RLIMIT_AS, (2**30, 2**30)), 10]

    def refused(_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "nice", refused)
    assert printed("sums", tmp_path / "none") == {"errno": 2}, "it is read at the usual priority"
