"""Image pulls without a launch: started, shared by several requests, cancelled, listed."""

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
from agent.wire.images import ImageList, LocalImage, PullRequest, PullState, PullView
from agent.wire.instances import PullProgress

_log = logging.getLogger("mirbad.agent.images")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_AT_ONCE = 2
_KEPT = 100
_MOST_IMAGES = 300
_LIST_SECONDS = 10


@dataclass
class _PullTask:
    """The pull of one image, shared by every request for it. `stop` ends it at Docker's next event."""

    image: Image
    stop: docker_pull.PullStop = field(default_factory=docker_pull.PullStop)
    progress: PullProgress = field(default_factory=PullProgress)


@dataclass
class _PullEntry:
    view: PullView
    task: _PullTask | None = None


class ImagePulls:
    """Image pulls of this node. A restart of the agent forgets them: Docker ends a pull that nobody follows."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._entries: dict[str, _PullEntry] = {}
        self._running: dict[str, tuple[_PullTask, asyncio.Task[None]]] = {}
        self._threads = ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="pull")

    def begin(self, pull_id: str, request: PullRequest) -> PullView:
        """Start a pull and return at once; the same id gets the same pull, the same image the same task.

        AgentError INVALID_REQUEST, SPEC_REJECTED (an image that this node does not run).
        """
        if not _ID.fullmatch(pull_id):
            raise AgentError(AgentCode.INVALID_REQUEST, "a pull id is 1-128 of A-Z a-z 0-9 . _ -")
        image = images.admitted(self._config, request.image, request.digest)
        known = self._entries.get(pull_id)
        if known is not None and known.view.state in (PullState.PULLING, PullState.READY):
            return self.view(pull_id)
        running = self._running.get(image.reference)
        if running is None or running[0].stop.is_set():
            task = _PullTask(image)
            running = (task, asyncio.create_task(self._run(task), name=f"pull {image.reference}"))
            self._running[image.reference] = running
        view = PullView(
            pull_id=pull_id, image=image.reference, state=PullState.PULLING, started_at=now_text(),
            text="Waiting for another pull on this node.",
        )  # fmt: skip
        self._entries[pull_id] = _PullEntry(view, running[0])
        self._retain()
        return self.view(pull_id)

    async def _run(self, task: _PullTask) -> None:
        loop = asyncio.get_running_loop()

        def report(value: PullProgress) -> None:
            loop.call_soon_threadsafe(setattr, task, "progress", value)

        state, code, reason = PullState.READY, None, None
        try:
            await loop.run_in_executor(
                self._threads, docker_pull.ensure_image, self._config.docker_host, task.image, report, task.stop
            )
        except docker_pull.PullStopped:
            return  # the caller of the stop has already set the state of its pulls
        except DeliveryFailed as error:
            state, code, reason = PullState.FAILED, error.code, str(error)
            _log.warning("%s", error)
        except Exception:  # noqa: BLE001 - the edge of a background task: a bug is a failed pull
            _log.exception("the pull of %s failed unexpectedly", task.image.reference)
            state, code, reason = PullState.FAILED, "internal", "The agent failed on this pull; see the agent's log."
        finally:
            if self._running.get(task.image.reference, (None,))[0] is task:
                del self._running[task.image.reference]
        for entry in [entry for entry in self._entries.values() if entry.task is task]:
            self._end(entry, state, code, reason)

    def _end(self, entry: _PullEntry, state: PullState, code: str | None, reason: str | None) -> None:
        final = {"state": state, "reason_code": code, "reason": reason, "finished_at": now_text(), "text": ""}
        entry.view = self._shown(entry).model_copy(update=final)
        entry.task = None

    def cancel(self, pull_id: str) -> PullView:
        """Cancel a pull; the image is pulled on while another pull needs it. AgentError NOT_FOUND."""
        entry = self._entry(pull_id)
        task = entry.task
        if task is None:
            return entry.view
        self._end(entry, PullState.CANCELLED, "cancelled", "Cancelled.")
        if not any(other.task is task for other in self._entries.values()):
            task.stop.set()
        return entry.view

    def view(self, pull_id: str) -> PullView:
        """Return one pull as it is now. AgentError NOT_FOUND."""
        return self._shown(self._entry(pull_id))

    async def listed(self) -> ImageList:
        """Return Docker's images and the pulls; never raises when Docker does not answer."""
        pulls = tuple(self._shown(entry) for entry in reversed(self._entries.values()))
        try:
            found = await asyncio.to_thread(_here, self._config.docker_host)
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            return ImageList(problem=docker_engine.describe_error(error, self._config.docker_host), pulls=pulls)
        return ImageList(images=found[:_MOST_IMAGES], truncated=len(found) > _MOST_IMAGES, pulls=pulls)

    async def close(self) -> None:
        """Stop the pulls. Layers that are complete stay with Docker."""
        running = tuple(self._running.values())
        for task, _ in running:
            task.stop.set()
        for _, runner in running:
            runner.cancel()
        await asyncio.gather(*(runner for _, runner in running), return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _entry(self, pull_id: str) -> _PullEntry:
        if (entry := self._entries.get(pull_id)) is None:
            raise AgentError(AgentCode.NOT_FOUND, f"this node has no pull {pull_id}")
        return entry

    def _shown(self, entry: _PullEntry) -> PullView:
        if entry.task is None:
            return entry.view
        progress = entry.task.progress
        changes: dict[str, Any] = {"done_bytes": progress.done_bytes, "total_bytes": progress.total_bytes}
        if progress.text:
            changes["text"] = progress.text
        return entry.view.model_copy(update=changes)

    def _retain(self) -> None:
        over = [key for key, entry in self._entries.items() if entry.task is None]
        for key in over[: max(len(self._entries) - _KEPT, 0)]:
            del self._entries[key]


def _here(docker_host: str | None) -> tuple[LocalImage, ...]:
    client = docker_engine.connect(docker_host, _LIST_SECONDS)
    try:
        return tuple(sorted(_described(client.api.images()), key=lambda image: image.references))
    finally:
        client.close()


def _described(rows: Iterable[Any]) -> Iterable[LocalImage]:
    """Yield the images that have a name; Docker reports null and ``<none>`` where there is none."""
    for row in rows:
        named = [*(row.get("RepoDigests") or ()), *(row.get("RepoTags") or ())]
        references = tuple(str(name) for name in named if "<none>" not in str(name))
        size = row.get("Size")
        if references:
            yield LocalImage(references=references, size_bytes=size if isinstance(size, int) else None)
