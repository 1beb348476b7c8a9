"""Downloads that kill their own process at a moment: run as a module by the tests.

Arguments: state folder, models root, moment, spec. ``middle`` is half-way, ``verified`` once every file is, before the
folder appears, ``placed`` once it is there and before that is written down.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from agent.config import AgentConfig
from agent.downloads import DownloadManager
from agent.downloads.partial_file import PartialFile
from agent.downloads.staging import Staging
from agent.wire.downloads import DownloadSpec


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(state: str, models: str, moment: str, text: str) -> None:
    spec = DownloadSpec.model_validate_json(text)
    place = Staging.place

    def deadly(self: Staging, spec: DownloadSpec) -> None:
        if moment == "verified":
            die()
        place(self, spec)
        die()

    append, written = PartialFile.append, 0

    def deadly_append(self: PartialFile, data: bytes) -> None:
        nonlocal written
        append(self, data)
        written += len(data)
        if moment == "middle" and written > spec.total_bytes // 2:
            die()

    Staging.place = deadly  # type: ignore[method-assign]
    PartialFile.append = deadly_append  # type: ignore[method-assign]
    downloads = DownloadManager(AgentConfig(state_dir=Path(state), models_root=Path(models)))
    await downloads.recover()
    await downloads.begin("d1", spec)
    async with asyncio.timeout(60):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
