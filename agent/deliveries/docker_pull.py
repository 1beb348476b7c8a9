"""Pulls of images, with their progress."""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import docker
import docker.errors
import requests
import urllib3.exceptions
from docker.types import CancellableStream

from agent import clock
from agent.common.redaction import redact
from agent.deliveries import docker_engine, registry_errors, registry_login
from agent.deliveries.base import DeliveryFailed
from agent.deliveries.images import Image
from agent.wire.instances import PullProgress

_REPORT_SECONDS = 0.3
_TIMEOUT_SECONDS = 600
_DONE = frozenset({"Download complete", "Pull complete", "Verifying Checksum", "Extracting"})


_BROKEN = (urllib3.exceptions.HTTPError, docker.errors.StreamParseError)
"""Errors of reading a stream when Docker goes away in the middle, which the client does not translate."""


class PullStopped(Exception):
    """The pull was stopped on request."""


class PullStop(threading.Event):
    """Request to stop a pull, also while Docker is silent: the response is closed under its reader."""

    def __init__(self) -> None:
        super().__init__()
        self._closers: list[Callable[[], None]] = []

    def closes(self, close: Callable[[], None]) -> None:
        """Call `close` once the stop is requested, at once if it already is."""
        self._closers.append(close)
        if self.is_set():
            close()

    def set(self) -> None:
        """Request the stop."""
        super().set()
        for close in self._closers:
            close()


class PullLayers:
    """Bytes of a pull, from Docker's events. The total is None until every layer has reported its size."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}
        self._total: dict[str, int | None] = {}
        self._status = ""

    def add(self, event: Mapping[str, Any]) -> None:
        """Add one event. DeliveryFailed for an error, which Docker sends in a body with status 200."""
        if "error" in event or "errorDetail" in event:
            detail = event.get("errorDetail") or {}
            raise DeliveryFailed(str(detail.get("message") or event.get("error")), code="pull_failed")
        layer, status = str(event.get("id", "")), str(event.get("status", ""))
        self._status = status or self._status
        if status == "Pulling fs layer":
            self._total.setdefault(layer, None)
        elif status == "Already exists":
            self._total.pop(layer, None)
        elif status == "Downloading":
            detail = event.get("progressDetail") or {}
            if detail.get("total"):
                self._total[layer] = int(detail["total"])
            self._done[layer] = int(detail.get("current") or 0)
        elif status in _DONE and layer in self._total:
            if (size := self._total[layer]) is not None:
                self._done[layer] = size
            elif layer in self._done:
                self._total[layer] = self._done[layer]

    def progress(self, image: Image) -> PullProgress:
        """Return the progress so far."""
        known = [size for size in self._total.values() if size is not None]
        total = sum(known) if known and len(known) == len(self._total) else None
        done = sum(self._done.values()) if self._done else None
        return PullProgress(done_bytes=done, total_bytes=total, text=f"Pulling image {image.repository}")


def is_here(client: docker.DockerClient, image: Image) -> bool:
    """Return whether Docker has the image. DockerException when Docker does not answer."""
    try:
        client.images.get(image.reference)
    except docker.errors.ImageNotFound:
        return False
    return True


def ensure_image(docker_host: str | None, image: Image, report: Callable[[PullProgress], None], stop: PullStop) -> None:
    """Pull `image` unless it exists on this machine; blocking. DeliveryFailed, PullStopped."""
    if stop.is_set():
        raise PullStopped
    try:
        client = docker_engine.connect(docker_host, _TIMEOUT_SECONDS)
        try:
            if is_here(client, image):
                return
            report(PullProgress(text=f"Pulling image {image.repository}"))
            pull(client, image, report, stop)
        finally:
            client.close()
    except (*_BROKEN, docker.errors.DockerException, requests.RequestException, OSError) as error:
        if stop.is_set():
            raise PullStopped from error
        raise DeliveryFailed(docker_engine.describe_error(error, docker_host), code="runtime_unavailable") from error


def pull(client: docker.DockerClient, image: Image, report: Callable[[PullProgress], None], stop: PullStop) -> None:
    """Pull `image`; `report` is called from this thread, a few times a second. DeliveryFailed, PullStopped.

    Docker ends a pull whose response is closed.
    """
    responses: list[requests.Response] = []

    def note(response: requests.Response, *_: object, **__: object) -> None:
        responses.append(response)
        stop.closes(lambda: _hang_up(response))

    client.api.hooks["response"].append(note)
    try:
        events: Iterable[Any] = client.api.pull(
            image.repository, tag=image.digest or image.tag or "latest", stream=True, decode=True
        )
        _follow(events, image, report, stop)
    except docker.errors.APIError as error:
        raise _explained(image, str(error.explanation or error)) from error
    except DeliveryFailed as error:
        raise _explained(image, str(error)) from error
    except docker.errors.DockerException as error:
        if "credentials store" not in str(error).lower():
            raise
        raise _explained(image, str(error)) from error
    except AttributeError as error:
        # raised by urllib3 when the stream is closed under its reader
        if not stop.is_set():
            raise
        raise PullStopped from error
    finally:
        for response in responses:
            response.close()
    if stop.is_set():
        raise PullStopped
    if not is_here(client, image):
        raise DeliveryFailed(f"The image {image.reference} was pulled, but Docker does not list it.")


def _hang_up(response: requests.Response) -> None:
    # The library's stream knows the socket; it is closed already when the pull has just ended.
    with suppress(OSError, AttributeError, docker.errors.DockerException):
        CancellableStream(iter(()), response).close()


def _follow(events: Iterable[Any], image: Image, report: Callable[[PullProgress], None], stop: PullStop) -> None:
    layers, reported_at = PullLayers(), 0.0
    for event in events:
        if stop.is_set():
            raise PullStopped
        layers.add(event)
        if clock.monotonic() - reported_at >= _REPORT_SECONDS:
            reported_at = clock.monotonic()
            report(layers.progress(image))


def _explained(image: Image, text: str) -> DeliveryFailed:
    """Return Docker's message with the next step."""
    problem = registry_errors.explain(text, image, registry_login.of(image.repository))
    words = redact(text[:400])
    return DeliveryFailed(
        f"The image {image.reference} could not be pulled: {problem.hint} Docker says: {words}", code=problem.code.value
    )
