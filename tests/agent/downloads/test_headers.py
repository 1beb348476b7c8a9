"""Headers of safetensors: as JSON has it in any spelling, up to the format's limit, while the agent goes on serving."""

import asyncio
import io
import itertools
import json
import random
import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.common.formats import safetensors
from agent.common.formats.safetensors import BadSafetensors
from agent.downloads import headers
from agent.server import downloads as routes
from agent.wire.shape import FolderShape
from tests.agent.core.conftest import *  # noqa: F403 - its fixtures: a fleet, a running agent, a master
from tests.agent.core.conftest import Agent, Master
from tests.waiting import until_answer

pytestmark = pytest.mark.unit

TENSOR = b'{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}'


def entries(count: int, start: int = 0) -> Iterator[str]:
    """Tensors as the writers of the format write them, of 2 kB each."""
    for number in range(start, start + count):
        name = f"model.layers.{number % 61}.mlp.experts.{number}.weight"
        span = f"[{number * 2048},{number * 2048 + 2048}]"
        yield f'"{name}":{{"dtype":"BF16","shape":[32,32],"data_offsets":{span}}}'


def header(size: int, **metadata: str) -> tuple[bytes, int]:
    """A header of about `size` bytes, and the number of its tensors."""
    count = max(size // 109, 1)
    parts = itertools.chain([f'"__metadata__":{json.dumps(metadata)}'] if metadata else [], entries(count))
    return f"{{{','.join(parts)}}}".encode(), count


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(data)) + data)


def by_json(data: bytes) -> tuple[int, int, dict[str, int]]:
    """The sums as the whole document gives them."""
    total, experts, kinds = 0, 0, {}
    for name, entry in json.loads(data).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            total += end - begin
            experts += end - begin if ".experts." in name else 0
            kinds[entry["dtype"]] = kinds.get(entry["dtype"], 0) + end - begin
    return total, experts, kinds


def document(dice: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if dice.random() < 0.5:
        texts = ["", "x", '},"', '\\"', "é😀", "}{[]", "\\" * 3]
        made["__metadata__"] = {dice.choice(["a", 'b"', "c\\", "}{"]): dice.choice(texts) for _ in range(3)}
    at = 0
    for number in range(dice.randrange(6)):
        size = dice.randrange(100)
        entry: dict[str, Any] = {"dtype": dice.choice(["BF16", "F8_E4M3", "é"]), "shape": [size]}
        entry["data_offsets"] = [at, at + size]
        if dice.random() < 0.3:
            entry = dict(reversed(entry.items()))
        if dice.random() < 0.2:
            entry["more"] = {"y": ["}", 1, None, 1.5]}
        made[dice.choice(["a.experts.%d", "b\n%d", "é%d", '"%d', "\\%d", "__metadata__%d"]) % number] = entry
        at += size
    items = list(made.items())
    dice.shuffle(items)
    return dict(items)


@pytest.mark.parametrize("window", [2, 64, safetensors._READ])
def test_the_sums_are_those_of_the_whole_document_in_any_spelling(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(safetensors, "_READ", window)
    monkeypatch.setattr(safetensors, "_WINDOW", window // 2)
    dice = random.Random(5)
    spellings: tuple[dict[str, Any], ...] = ({}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False})
    documents = [json.dumps(document(dice), **spellings[number % 4]).encode() for number in range(600)]
    found = [safetensors.summed(data + b" " * dice.randrange(9)) for data in documents]
    sums = [(one.tensor_bytes, one.expert_bytes, one.by_type) for one in found]
    assert sums == [by_json(data) for data in documents]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"  ", "is not JSON."),
        (b"[]", "is not a JSON object."),
        (b'"x"', "is not a JSON object."),
        (b"12", "is not a JSON object."),
        (b"nul", "is not JSON."),
        (b"{,}", "is not JSON."),
        (b"{}x", "is not JSON."),
        (b'{"a"}', "is not JSON."),
        (b'{"a":}', "is not JSON."),
        (b'{"a":' + TENSOR, "is not JSON."),
        (b'{"a":' + TENSOR + b",}", "is not JSON."),
        (b'{"a":' + TENSOR + b' "b":' + TENSOR + b"}", "is not JSON."),
        (b'{"a":' + TENSOR + b"}}", "is not JSON."),
        (b"{5:" + TENSOR + b"}", "is not JSON."),
        (b'{"\xff":' + TENSOR + b"}", "is not JSON."),
        (b'{"a\\q":' + TENSOR + b"}", "is not JSON."),
        (b'{"__metadata__":{"a":"', "is not JSON."),
        (b'{"a":' + b"[" * 100_000 + b"}", "is not JSON."),
        (b'{"a":1}', "tensor that cannot be read"),
        (b'{"a":{}}', "tensor that cannot be read"),
        (b'{"a":{"dtype":5,"data_offsets":[0,4]}}', "tensor that cannot be read"),
        (b'{"a":{"dtype":"B","data_offsets":[0]}}', "tensor that cannot be read"),
        (b'{"a":{"dtype":"B","data_offsets":[0,true]}}', "tensor that cannot be read"),
        (b'{"a":{"dtype":"B","data_offsets":[0.0,4]}}', "tensor that cannot be read"),
        (b'{"a":{"dtype":"B","shape":[],"data_offsets":[5,4]}}', "tensor that cannot be read"),
        (b'{"a":{"dtype":"B","shape":[],"data_offsets":[0,9999999999999999999]}}', "tensor that cannot be read"),
        (b'{"a":{"dtype":"B","data_offsets":[0,' + b"9" * 5000 + b"]}}", "is not JSON."),
        (b'{"a":{"x":"' + b"y" * 3_000_000 + b'"}}', "tensor that cannot be read"),
    ],
)
def test_another_document_is_a_problem_in_words(data: bytes, words: str) -> None:
    with pytest.raises(BadSafetensors, match=words):
        safetensors.summed(data)


def test_types_without_end_are_refused() -> None:
    many = {str(number): {"dtype": f"T{number}", "shape": [], "data_offsets": [0, 4]} for number in range(1000)}
    with pytest.raises(BadSafetensors, match="more types"):
        safetensors.summed(json.dumps(many).encode())


@pytest.mark.parametrize("length", [2, 31_000_000, 100_000_000])
def test_a_header_may_be_as_long_as_the_format_allows(length: int) -> None:
    assert safetensors.header_length(struct.pack("<Q", length)) == length


@pytest.mark.parametrize("length", [0, 1, 100_000_001, 2**64 - 1])
def test_no_header_is_shorter_or_longer(length: int) -> None:
    with pytest.raises(BadSafetensors):
        safetensors.header_length(struct.pack("<Q", length))


def test_a_long_header_needs_little_memory() -> None:
    data, count = header(4_000_000, tags="x" * 2_000_000)
    file = io.BytesIO(struct.pack("<Q", len(data)) + data)
    tracemalloc.start()
    try:
        found = safetensors.parse(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.tensors, found.expert_bytes) == (count, count * 2048)
    assert peak < 8_000_000


def test_short_and_long_headers_give_the_same_and_a_long_one_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, count = header(100_000)
    write(tmp_path / "a.safetensors", data)
    inside = headers.sums_of(tmp_path / "a.safetensors")
    monkeypatch.setattr(headers, "_SHORT_BYTES", 1000)
    outside = headers.sums_of(tmp_path / "a.safetensors")
    assert inside == outside
    assert outside.tensors == count
    monkeypatch.setattr(headers, "_child", lambda *_: pytest.fail("it was read again"))
    assert headers.sums_of(tmp_path / "a.safetensors") == outside


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"[" * 2000, "is not JSON"), (b'{"a":' + b" " * 2000 + b"1}", "tensor"), (b"{" + b" " * 2000, "is not JSON")],
)
def test_a_long_header_that_is_none_is_a_problem_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, words: str
) -> None:
    monkeypatch.setattr(headers, "_SHORT_BYTES", 1000)
    write(tmp_path / "a.safetensors", data)
    with pytest.raises(BadSafetensors, match=words):
        headers.sums_of(tmp_path / "a.safetensors")
    (tmp_path / "a.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:1500])
    with pytest.raises(BadSafetensors, match="cut short"):
        headers.sums_of(tmp_path / "a.safetensors")


def test_a_header_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_SHORT_BYTES", 1000)
    monkeypatch.setattr(headers, "_LIMIT_SECONDS", 0.001)
    write(tmp_path / "a.safetensors", header(100_000)[0])
    with pytest.raises(BadSafetensors, match="could not be read"):
        headers.sums_of(tmp_path / "a.safetensors")
    assert not headers.are_read_below(tmp_path)


@pytest.fixture(params=[10, 10**6])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read documents of both lengths: outside of this process, and inside."""
    monkeypatch.setattr(headers, "_SHORT_BYTES", request.param)


def indexed(path: Path, document: Any) -> tuple[str, ...]:
    data = (json.dumps(document) + " " * 20).encode()
    path.write_bytes(data)
    return headers.indexed_files(path, data)


@pytest.mark.usefixtures("limit")
def test_an_index_is_read_alike_inside_and_outside(tmp_path: Path) -> None:
    weights = {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}
    assert indexed(tmp_path / "index.json", {"weight_map": weights}) == ("1.safetensors", "2.safetensors")


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("document", [{"weight_map": []}, [], {}, {"weight_map": {"a": 5}}])
def test_another_document_is_no_index(tmp_path: Path, document: Any) -> None:
    with pytest.raises(ValueError, match="no index"):
        indexed(tmp_path / "index.json", document)


async def test_the_agent_answers_while_it_reads_a_long_header(master: Master, agent: Agent) -> None:
    folder = agent.config.models_root / "m"
    data, count = header(16_000_000)
    write(folder / "model.safetensors", data)
    began = time.monotonic()
    json.loads(data)
    whole = time.monotonic() - began
    loop, worst, last = asyncio.get_running_loop(), 0.0, time.monotonic()

    def tick() -> None:
        nonlocal worst, last, timer
        now = time.monotonic()
        worst, last = max(worst, now - last), now
        timer = loop.call_later(0.005, tick)

    timer = loop.call_soon(tick)
    answer = await until_answer(lambda: shaped(master), "the shape", every=0.2)
    timer.cancel()
    (found,) = FolderShape.model_validate(answer).safetensors
    assert (found.tensor_bytes, found.expert_bytes) == (count * 2048, count * 2048)
    assert worst < whole / 2, f"the agent stood still for {worst:.1f} s, where the whole document takes {whole:.1f} s"


async def shaped(master: Master) -> dict[str, Any] | None:
    reply = await master.get("/folders/m/shape")
    return reply.body if reply.status == 200 else None


async def test_a_header_that_takes_long_is_not_ready_yet_and_its_folder_stays_listed(
    master: Master, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_LOOK_SECONDS", 0.05)
    write(agent.config.models_root / "m" / "model.safetensors", header(2_000_000)[0])
    reply = await master.get("/folders/m/shape")
    assert (reply.status, reply.body["code"]) == (503, "not_ready")
    assert "still being read" in reply.body["detail"]
    monkeypatch.setattr(routes, "_LOOK_SECONDS", 5.0)
    assert [folder["problem"] for folder in (await master.get("/folders")).body["folders"]] == [None]
    answer = await until_answer(lambda: shaped(master), "the shape", every=0.1)
    assert answer["safetensors"][0]["problem"] is None
