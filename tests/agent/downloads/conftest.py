"""Downloads of one node against a hub on this machine."""

import hashlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.config import AgentConfig
from agent.downloads import DownloadManager
from agent.downloads.hub import RetryPolicy
from agent.wire.downloads import FINAL_STATES, DownloadFile, DownloadSpec, DownloadView
from tests.bench.hub import Hub, Repository
from tests.bench.hub.server import LARGE_BYTES, git_sha1
from tests.waiting import until_async

QUICK = RetryPolicy(connect_seconds=2.0, read_seconds=2.0, pauses=(0.05, 0.05, 0.05))
SIZE = 3 * 1024 * 1024


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def repository(name: str = "acme/tiny", **changes: Any) -> Repository:
    files = {"config.json": b'{"model_type": "llama"}', "model.safetensors": noise(SIZE), "tokenizer.json": b"{}"}
    return Repository(**{"name": name, "files": files, **changes})


def spec_of(hub: Hub, found: Repository, **changes: Any) -> DownloadSpec:
    files = tuple(
        DownloadFile(
            path=path,
            size_bytes=len(data),
            digest=f"sha256:{hashlib.sha256(data).hexdigest()}"
            if len(data) >= LARGE_BYTES
            else f"git-sha1:{git_sha1(data)}",
        )
        for path, data in sorted(found.files.items())
    )
    values = {
        "folder": found.name.replace("/", "--"),
        "repository": found.name,
        "commit": found.sha,
        "files": files,
        "endpoint": hub.endpoint,
    }
    return DownloadSpec.model_validate(values | changes)


class Node:
    """Downloads of one state folder and models root."""

    def __init__(self, config: AgentConfig, **options: Any) -> None:
        self.config = config
        self.options = {"retry_policy": QUICK, **options}
        self.downloads = DownloadManager(config, **self.options)

    @property
    def root(self) -> Path:
        return self.config.models_root

    async def restart(self) -> None:
        await self.downloads.close()
        self.downloads = DownloadManager(self.config, **self.options)
        await self.downloads.recover()

    async def end(self, download_id: str, seconds: float = 20.0) -> DownloadView:
        """The download once it is over."""
        return await self.until(download_id, lambda view: view.state in FINAL_STATES, seconds)

    async def until(
        self, download_id: str, look: Callable[[DownloadView], bool], seconds: float = 20.0
    ) -> DownloadView:
        """The first view that satisfies `look`. Progress reports no event, so this polls."""
        await until_async(lambda: look(self.downloads.view(download_id)), f"the download {download_id}", seconds)
        return self.downloads.view(download_id)

    def listing(self) -> list[str]:
        """The visible folders of the models root."""
        return sorted(path.name for path in self.root.iterdir() if not path.name.startswith("."))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Hub() as made:
        yield made


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    (tmp_path / "models").mkdir()
    (tmp_path / "state").mkdir()
    return AgentConfig(state_dir=tmp_path / "state", models_root=tmp_path / "models")


@pytest.fixture
async def node(config: AgentConfig) -> AsyncIterator[Node]:
    made = Node(config)
    await made.downloads.recover()
    yield made
    await made.downloads.close()
