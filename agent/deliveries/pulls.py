"""Images that are brought onto the machine without a launch: begun, shared by everyone who asks, cancelled, told."""

import asyncio
import logging
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import docker
import docker.errors
import requests

from agent.clock import now_text
from agent.config import AgentConfig
from agent.deliveries import docker_engine, docker_pull, images
from agent.deliveries.base import DeliveryFailed
from agent.deliveries.images import Image
from agent.errors import AgentError
from agent.wire.errors import AgentCode
from agent.wire.images import ImageHere, ImageList, PullRequest, PullState, PullView
from agent.wire.instances import PullProgress

_log = logging.getLogger("mirbad.agent.images")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_AT_ONCE = 2
_KEPT = 100
_MOST_IMAGES = 300
_LIST_SECONDS = 10


@dataclass
class _Work:
    """One image on its way, for every pull that wants it. `stop` ends it at the engine's next event."""

    image: Image
    stop: docker_pull.Stop = field(default_factory=docker_pull.Stop)
    progress: PullProgress = field(default_factory=PullProgress)


@dataclass
class _Entry:
    view: PullView
    work: _Work | None = None


class Pulls:
    """Pulls of this node. They are not kept over a restart of the agent: the engine ends a pull that nobody follows."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._entries: dict[str, _Entry] = {}
        self._works: dict[str, tuple[_Work, asyncio.Task[None]]] = {}
        self._threads = ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="pull")

    def begin(self, pull_id: str, wanted: PullRequest) -> PullView:
        """Bring an image and return at once; the same id gets the same pull, the same image the same work.

        AgentError INVALID_REQUEST, SPEC_REJECTED (an image that this node does not run).
        """
        if not _ID.fullmatch(pull_id):
            raise AgentError(AgentCode.INVALID_REQUEST, "a pull id is 1-128 of A-Z a-z 0-9 . _ -")
        image = images.admitted(self._config, wanted.image, wanted.digest)
        known = self._entries.get(pull_id)
        if known is not None and known.view.state in (PullState.PULLING, PullState.READY):
            return self.view(pull_id)
        running = self._works.get(image.reference)
        if running is None or running[0].stop.is_set():
            work = _Work(image)
            running = (work, asyncio.create_task(self._run(work), name=f"pull {image.reference}"))
            self._works[image.reference] = running
        view = PullView(
            pull_id=pull_id, image=image.reference, state=PullState.PULLING, started_at=now_text(),
            text="Waiting for another pull of this node.",
        )  # fmt: skip
        self._entries[pull_id] = _Entry(view, running[0])
        self._retain()
        return self.view(pull_id)

    async def _run(self, work: _Work) -> None:
        loop = asyncio.get_running_loop()

        def tell(value: PullProgress) -> None:
            loop.call_soon_threadsafe(setattr, work, "progress", value)

        state, code, reason = PullState.READY, None, None
        try:
            await loop.run_in_executor(
                self._threads, docker_pull.bring, self._config.docker_host, work.image, tell, work.stop
            )
        except docker_pull.PullStopped:
            return  # whoever stopped it has said what its pulls read
        except DeliveryFailed as error:
            state, code, reason = PullState.FAILED, error.code, str(error)
            _log.warning("%s", error)
        except Exception:  # noqa: BLE001 - the edge of a background task: a fault of ours is a failed pull
            _log.exception("the pull of %s failed in a way that nobody foresaw", work.image.reference)
            state, code, reason = PullState.FAILED, "internal", "The agent failed on this pull; its log has the reason."
        finally:
            if self._works.get(work.image.reference, (None,))[0] is work:
                del self._works[work.image.reference]
        for entry in [entry for entry in self._entries.values() if entry.work is work]:
            self._end(entry, state, code, reason)

    def _end(self, entry: _Entry, state: PullState, code: str | None, reason: str | None) -> None:
        final = {"state": state, "reason_code": code, "reason": reason, "finished_at": now_text(), "text": ""}
        entry.view = self._shown(entry).model_copy(update=final)
        entry.work = None

    def cancel(self, pull_id: str) -> PullView:
        """End a pull; its image goes on coming while another pull wants it. AgentError NOT_FOUND."""
        entry = self._entry(pull_id)
        work = entry.work
        if work is None:
            return entry.view
        self._end(entry, PullState.CANCELLED, "cancelled", "It was cancelled.")
        if not any(other.work is work for other in self._entries.values()):
            work.stop.set()
        return entry.view

    def view(self, pull_id: str) -> PullView:
        """One pull as it is now. AgentError NOT_FOUND."""
        return self._shown(self._entry(pull_id))

    async def listed(self) -> ImageList:
        """What the engine has, and the pulls; never raises for an engine that does not answer."""
        pulls = tuple(self._shown(entry) for entry in reversed(self._entries.values()))
        try:
            found = await asyncio.to_thread(_here, self._config.docker_host)
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            return ImageList(problem=docker_engine.say(error, self._config.docker_host), pulls=pulls)
        return ImageList(images=found[:_MOST_IMAGES], truncated=len(found) > _MOST_IMAGES, pulls=pulls)

    async def close(self) -> None:
        """The agent ends: let the pulls go. What came of them stays with the engine."""
        running = [task for _, task in self._works.values()]
        for work, _ in self._works.values():
            work.stop.set()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _entry(self, pull_id: str) -> _Entry:
        if (entry := self._entries.get(pull_id)) is None:
            raise AgentError(AgentCode.NOT_FOUND, f"this agent knows no pull {pull_id}")
        return entry

    def _shown(self, entry: _Entry) -> PullView:
        if entry.work is None:
            return entry.view
        progress = entry.work.progress
        changes: dict[str, Any] = {"done_bytes": progress.done_bytes, "total_bytes": progress.total_bytes}
        if progress.text:
            changes["text"] = progress.text
        return entry.view.model_copy(update=changes)

    def _retain(self) -> None:
        over = [key for key, entry in self._entries.items() if entry.work is None]
        for key in over[: max(len(self._entries) - _KEPT, 0)]:
            del self._entries[key]


def _here(docker_host: str | None) -> tuple[ImageHere, ...]:
    client = docker_engine.connect(docker_host, _LIST_SECONDS)
    try:
        return tuple(sorted(_described(client.api.images()), key=lambda image: image.references))
    finally:
        client.close()


def _described(rows: Iterable[Any]) -> Iterable[ImageHere]:
    """Images that have a name; the engine says null and ``<none>`` where there is none."""
    for row in rows:
        named = [*(row.get("RepoDigests") or ()), *(row.get("RepoTags") or ())]
        references = tuple(str(name) for name in named if "<none>" not in str(name))
        size = row.get("Size")
        if references:
            yield ImageHere(references=references, size_bytes=size if isinstance(size, int) else None)
