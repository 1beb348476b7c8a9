"""The status of a download of several files is the newest word about any of them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.downloads import task as tasks
from agent.downloads.staging import Staging
from agent.downloads.task import DownloadTask
from agent.wire.downloads import DownloadFile, DownloadSpec
from tests.agent.downloads.conftest import QUICK

pytestmark = pytest.mark.unit


async def test_the_newest_word_is_shown_and_the_one_before_it_once_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says: list[Callable[[str], None]] = []

    async def fetch(context: Any, *_: object) -> None:
        says.append(context.on_status)

    monkeypatch.setattr(tasks, "fetch", fetch)
    files = tuple(DownloadFile(path=name, size_bytes=1, digest=f"sha256:{'a' * 64}") for name in ("a", "b"))
    spec = DownloadSpec(folder="f", repository="acme/f", commit="c" * 40, files=files)
    task = DownloadTask(spec, Staging(tmp_path, "f"), lambda _: 0, QUICK, asyncio.Semaphore(1))
    for file in files:
        await task._fetch(None, [file])  # type: ignore[arg-type]
    a, b = says
    for say, text, shown in (
        (a, "Connection refused.", "Connection refused."),
        (b, "Waiting until 12:40.", "Waiting until 12:40."),
        (a, "The hub answers 503.", "The hub answers 503."),
        (a, "", "Waiting until 12:40."),
        (b, "", ""),
    ):
        say(text)
        assert task.text == shown
