"""The routes of downloads and folders, on a real agent over its real port."""

import struct
from typing import Any

import pytest

from agent.wire.downloads import DownloadView, FolderList, FolderRemoved, GgufList
from tests.agent.core.conftest import *  # noqa: F403 - its fixtures: a fleet, a running agent, a master
from tests.agent.core.conftest import Agent, Master
from tests.agent.downloads.conftest import noise, repository, spec_of
from tests.bench.hub import Hub
from tests.waiting import until_async

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def roots(config: Any) -> None:
    config.models_root.mkdir(exist_ok=True)


async def over(master: Master, agent: Agent, download_id: str) -> DownloadView:
    downloads = agent.server._downloads
    await until_async(lambda: downloads.view(download_id).finished_at, "the download to end")
    return DownloadView.model_validate((await master.get(f"/downloads/{download_id}")).body)


async def test_a_set_is_asked_for_followed_listed_and_removed(master: Master, agent: Agent, hub: Hub) -> None:
    found = hub.add(repository(gated=True, allowed={"hf_secret"}))
    body = spec_of(hub, found).to_wire()
    token = {"token": "hf_secret", "nonce": "n" * 32}
    assert (await master.change("PUT", "/downloads/op-1/token", token)).status == 200
    begun = await master.change("PUT", "/downloads/op-1", body, operation_id="op-1:downloading")
    assert begun.status == 202
    again = await master.change("PUT", "/downloads/op-1", body, operation_id="op-1:downloading")
    assert again.body == begun.body
    view = await over(master, agent, "op-1")
    assert (view.state, view.reason) == ("ready", None)
    assert [item["downloadId"] for item in (await master.get("/downloads")).body["downloads"]] == ["op-1"]
    listed = FolderList.model_validate((await master.get("/folders")).body)
    assert [folder.name for folder in listed.folders] == ["acme--tiny"]
    assert listed.free_bytes
    agent.engines.folders["acme--tiny"] = ("small",)
    refused = await master.change("DELETE", "/folders/acme--tiny")
    assert (refused.status, refused.body["code"]) == (409, "start_conflict")
    assert "small" in refused.body["detail"]
    agent.engines.folders.clear()
    gone = FolderRemoved.model_validate((await master.change("DELETE", "/folders/acme--tiny")).body)
    assert gone.freed_bytes >= view.total_bytes
    assert (gone.remaining_bytes, gone.folders.folders) == (0, ())
    assert (await master.change("DELETE", "/folders/acme--tiny")).status == 404
    journal = b"".join(path.read_bytes() for path in agent.config.state_dir.rglob("*") if path.is_file())
    assert b"hf_secret" not in journal


async def test_a_download_is_cancelled_and_forgotten(master: Master, hub: Hub) -> None:
    found = hub.add(repository())
    hub.faults.bytes_per_second = 1e6
    await master.change("PUT", "/downloads/op-2", spec_of(hub, found).to_wire())
    assert (await master.change("POST", "/downloads/op-2/cancel")).body["state"] == "cancelled"
    assert (await master.change("DELETE", "/downloads/op-2")).status == 200
    assert (await master.get("/downloads/op-2")).status == 404
    assert (await master.change("DELETE", "/downloads/op-2")).status == 200, "it is forgotten already"


async def test_pickles_and_bad_folders_are_refused_with_a_code(master: Master, hub: Hub) -> None:
    found = hub.add(repository(files={"pytorch_model.bin": noise(100_000)}))
    body = spec_of(hub, found).to_wire()
    refused = await master.change("PUT", "/downloads/op-3", body)
    assert (refused.status, refused.body["code"]) == (422, "spec_rejected")
    assert "pytorch_model.bin" in refused.body["detail"]
    assert (await master.change("DELETE", "/folders/.downloads")).status == 422
    assert hub.seen == []


def gguf(**values: Any) -> bytes:
    """A GGUF header with text and whole numbers."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    body = b""
    for key, value in values.items():
        body += text(key.replace("__", "."))
        body += struct.pack("<I", 8) + text(value) if isinstance(value, str) else struct.pack("<II", 4, value)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + body


async def test_the_headers_of_gguf_files_are_read_and_a_truncated_one_is_said(master: Master, agent: Agent) -> None:
    folder = agent.config.models_root / "mixed"
    folder.mkdir()
    whole = gguf(general__architecture="llama", general__name="Tiny", general__file_type=15, llama__context_length=8192)
    (folder / "a.gguf").write_bytes(whole)
    (folder / "b.gguf").write_bytes(whole[:60])
    (folder / "c.gguf").write_bytes(b"not one")
    (folder / "d-00001-of-00002.gguf").write_bytes(whole)
    (folder / "d-00002-of-00002.gguf").write_bytes(whole)
    (folder / "e.safetensors").write_bytes(b"")
    files = GgufList.model_validate((await master.get("/folders/mixed/gguf")).body).files
    assert [file.path for file in files] == ["a.gguf", "b.gguf", "c.gguf", "d-00001-of-00002.gguf"]
    first = files[0]
    assert (first.architecture, first.name, first.quantization, first.context_length) == (
        "llama",
        "Tiny",
        "Q4_K_M",
        8192,
    )
    assert "cut short" in (files[1].problem or "")
    assert "does not begin" in (files[2].problem or "")
    assert (files[3].parts, files[3].size_bytes) == (2, 2 * len(whole))
    assert (await master.get("/folders/none/gguf")).status == 404
