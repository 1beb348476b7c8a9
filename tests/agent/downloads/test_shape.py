"""The shape of a model as an agent reports it: headers alone, paths that stay inside, and problems in words."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from agent.downloads import shape
from agent.errors import AgentError
from agent.runtimes.source import files_of
from agent.wire.shape import FolderShape
from tests.agent.core.conftest import *  # noqa: F403 - its fixtures: a fleet, a running agent, a master
from tests.agent.core.conftest import Agent, Master
from tests.models_app.fit.test_noise import GGUF

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def roots(config: Any) -> None:
    config.models_root.mkdir(exist_ok=True)


def safetensors(path: Path, **tensors: int) -> None:
    """A file whose weights are a hole: only its header is written."""
    entries, at = {}, 0
    for name, size in tensors.items():
        entries[name] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + at)


def make(root: Path, name: str = "m") -> Path:
    folder = root / name
    folder.mkdir()
    return folder


def read(folder: Path, file: str = "") -> FolderShape:
    return shape.read(folder, files_of(folder), file)


async def test_two_shards_of_24_gb_are_told_by_their_headers(master: Master, agent: Agent) -> None:
    folder = make(agent.config.models_root, "big")
    gb = 10**9
    for part in (1, 2):
        safetensors(folder / f"model-0000{part}-of-00002.safetensors", a=20 * gb, **{"b.experts.1": 4 * gb})
    safetensors(folder / "consolidated.safetensors", a=48 * gb)
    (folder / "optimizer.pt").write_bytes(b"x" * 10)
    (folder / "config.json").write_text('{"rope_theta": Infinity}')
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    answer = await master.get("/folders/big/shape")
    assert answer.status == 200
    assert len(json.dumps(answer.body)) < 3000
    told = FolderShape.model_validate(answer.body)
    assert told.config == '{"rope_theta": Infinity}'
    assert told.indexed == ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    assert {file.path: (file.tensor_bytes, file.expert_bytes) for file in told.safetensors} == {
        "consolidated.safetensors": (48 * gb, 0),
        "model-00001-of-00002.safetensors": (24 * gb, 4 * gb),
        "model-00002-of-00002.safetensors": (24 * gb, 4 * gb),
    }


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/folders/none/shape", 404),
        ("/folders/m/shape?below=sub/none", 404),
        ("/folders/m/shape?below=..", 422),
        ("/folders/m/shape?below=../m", 422),
        ("/folders/m/shape?below=/etc", 422),
        ("/folders/m/shape?below=.hidden", 422),
        ("/folders/m/shape?file=../../etc/passwd", 422),
        ("/folders/m/shape?file=/etc/passwd", 422),
        ("/folders/.hidden/shape", 422),
        ("/folders/..%2F..%2Fetc/shape", 422),
        ("/folders/m/shape?below=a%00b", 422),
    ],
)
async def test_no_path_leads_out_of_the_models_root(master: Master, agent: Agent, path: str, status: int) -> None:
    make(agent.config.models_root)
    assert (await master.get(path)).status == status


async def test_one_gguf_of_several_is_read_when_it_is_named(master: Master, agent: Agent) -> None:
    folder = make(agent.config.models_root)
    below = make(folder, "sub")
    for name in ("a.gguf", "b.gguf", "mmproj-c.gguf"):
        (below / name).write_bytes(GGUF)
    told = FolderShape.model_validate((await master.get("/folders/m/shape?below=sub&file=b.gguf")).body)
    assert [model.path for model in told.gguf] == ["b.gguf"]
    assert told.gguf[0].values["llama.attention.head_count_kv"] == (8, 4)
    told = FolderShape.model_validate((await master.get("/folders/m/shape")).body)
    assert [model.path for model in told.gguf] == ["sub/a.gguf", "sub/b.gguf"]


def test_a_gguf_that_is_cut_short_is_a_problem_and_not_a_size_of_zero(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "a.gguf").write_bytes(GGUF[: len(GGUF) // 2])
    (told,) = read(folder).gguf
    assert told.problem == "The file is cut short in its header."
    assert told.tensor_bytes is None


def test_parts_of_a_gguf_that_are_not_there_are_missed(tmp_path: Path) -> None:
    folder = make(tmp_path)
    for part in (1, 2):
        (folder / f"m-0000{part}-of-00003.gguf").write_bytes(GGUF)
    (told,) = read(folder).gguf
    assert told.problem == "The model has 3 parts, but only 2 exist."
    (folder / "m-00003-of-00003.gguf").write_bytes(GGUF)
    (told,) = read(folder).gguf
    assert (told.parts, told.tensor_bytes, told.problem) == (3, 3 * 4 * 144, None)


def test_what_cannot_be_read_is_told_beside_what_can(tmp_path: Path) -> None:
    folder = make(tmp_path)
    safetensors(folder / "model.safetensors", a=100)
    (folder / "other.safetensors").write_bytes(b"\xff" * 100)
    (folder / "gone.safetensors").symlink_to(folder / "nowhere")
    (folder / "config.json").write_bytes(b"\xff\xfe{")
    (folder / "model.safetensors.index.json").write_text("[]")
    told = read(folder)
    problems = {file.path: file.problem for file in told.safetensors}
    assert problems["model.safetensors"] is None
    assert problems["other.safetensors"] == "The file does not begin as a safetensors file does."
    assert problems["gone.safetensors"] is not None
    assert told.index_problem == "model.safetensors.index.json is not a valid index of weights."
    FolderShape.model_validate_json(told.model_dump_json())


def test_a_configuration_larger_than_any_is_not_read(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "config.json").write_bytes(b" " * (1024 * 1024 + 1))
    told = read(folder)
    assert (told.config, told.config_problem) == (None, "config.json is too large.")


def test_a_folder_is_found_by_its_plain_name_only(tmp_path: Path) -> None:
    make(tmp_path)
    assert shape.find_folder(tmp_path, "m") == tmp_path / "m"
    for wrong in ("", "a/b", "..", ".x"):
        with pytest.raises(AgentError):
            shape.find_folder(tmp_path, wrong)
