"""Bringing an image onto the machine, with its progress."""

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
from agent.deliveries import docker_engine
from agent.deliveries.base import DeliveryFailed
from agent.deliveries.images import Image
from agent.wire.instances import PullProgress

_TELL_SECONDS = 0.3
_TIMEOUT_SECONDS = 600
_DONE = frozenset({"Download complete", "Pull complete", "Verifying Checksum", "Extracting"})


_BROKEN = (urllib3.exceptions.HTTPError, docker.errors.StreamParseError)
"""What reading a stream raises when the engine goes away in the middle, past the errors of its client."""


class PullStopped(Exception):
    """The pull was given up on request."""


class Stop(threading.Event):
    """Asks a pull to end, also while the engine says nothing: its answer is then closed under the reader."""

    def __init__(self) -> None:
        super().__init__()
        self._closers: list[Callable[[], None]] = []

    def closes(self, close: Callable[[], None]) -> None:
        """Call `close` when it is set, at once if it is."""
        self._closers.append(close)
        if self.is_set():
            close()

    def set(self) -> None:
        """Ask for the end."""
        super().set()
        for close in self._closers:
            close()


class Layers:
    """Bytes of a pull, from the events of the engine. The total is None until every layer has told its size."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}
        self._total: dict[str, int | None] = {}
        self._status = ""

    def take(self, event: Mapping[str, Any]) -> None:
        """One event. DeliveryFailed for an error, which the engine tells in a body whose status was 200."""
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
        """Where it stands."""
        known = [size for size in self._total.values() if size is not None]
        total = sum(known) if known and len(known) == len(self._total) else None
        done = sum(self._done.values()) if self._done else None
        return PullProgress(done_bytes=done, total_bytes=total, text=f"Pulls the image {image.repository}")


def is_here(client: docker.DockerClient, image: Image) -> bool:
    """Whether the engine has the image. DockerException when the engine does not answer."""
    try:
        client.images.get(image.reference)
    except docker.errors.ImageNotFound:
        return False
    return True


def bring(docker_host: str | None, image: Image, tell: Callable[[PullProgress], None], stop: Stop) -> None:
    """Have `image` on this machine, pulled unless it is here; blocking. DeliveryFailed, PullStopped."""
    if stop.is_set():
        raise PullStopped
    try:
        client = docker_engine.connect(docker_host, _TIMEOUT_SECONDS)
        try:
            if is_here(client, image):
                return
            tell(PullProgress(text=f"Pulls the image {image.repository}"))
            pull(client, image, tell, stop)
        finally:
            client.close()
    except (*_BROKEN, docker.errors.DockerException, requests.RequestException, OSError) as error:
        if stop.is_set():
            raise PullStopped from error
        raise DeliveryFailed(docker_engine.say(error, docker_host), code="runtime_unavailable") from error


def pull(client: docker.DockerClient, image: Image, tell: Callable[[PullProgress], None], stop: Stop) -> None:
    """Pull `image`; `tell` is called from this thread, some times a second. DeliveryFailed, PullStopped.

    The engine ends a pull whose answer is closed.
    """
    answers: list[requests.Response] = []

    def note(answer: requests.Response, *_: object, **__: object) -> None:
        answers.append(answer)
        stop.closes(lambda: _hang_up(answer))

    client.api.hooks["response"].append(note)
    try:
        events: Iterable[Any] = client.api.pull(
            image.repository, tag=image.digest or image.tag or "latest", stream=True, decode=True
        )
        _follow(events, image, tell, stop)
    except docker.errors.APIError as error:
        raise _explained(image, str(error.explanation or error)) from error
    except DeliveryFailed as error:
        raise _explained(image, str(error)) from error
    except AttributeError as error:
        # what urllib3 raises when the stream is closed under its reader
        if not stop.is_set():
            raise
        raise PullStopped from error
    finally:
        for answer in answers:
            answer.close()
    if stop.is_set():
        raise PullStopped
    if not is_here(client, image):
        raise DeliveryFailed(f"The image {image.reference} was pulled, and the engine does not have it.")


def _hang_up(answer: requests.Response) -> None:
    # The stream of the library knows where the socket is; it is closed already when the pull just ended.
    with suppress(OSError, AttributeError, docker.errors.DockerException):
        CancellableStream(iter(()), answer).close()


def _follow(events: Iterable[Any], image: Image, tell: Callable[[PullProgress], None], stop: Stop) -> None:
    layers, told = Layers(), 0.0
    for event in events:
        if stop.is_set():
            raise PullStopped
        layers.take(event)
        if clock.monotonic() - told >= _TELL_SECONDS:
            told = clock.monotonic()
            tell(layers.progress(image))


def _explained(image: Image, text: str) -> DeliveryFailed:
    """The engine's words, and what they ask for."""
    low = text.lower()
    if "no space left" in low:
        hint = "the disk of this node is full; make room for Docker's images."
    elif "unauthorized" in low or "denied" in low or "authentication required" in low:
        hint = "the registry has no such repository, or asks for a log-in (docker login on the node)."
    elif "manifest unknown" in low or "not found" in low:
        hint = "the registry has no such image; check the name and the digest."
    elif "no matching manifest" in low:
        hint = "the image is not made for this machine's processor."
    else:
        hint = "the registry could not be used from this node."
    return DeliveryFailed(
        f"The image {image.reference} could not be pulled: {hint} Docker says: {text[:400]}", code="pull_failed"
    )
