"""Names of container images, and which of them a node runs. One rule for master and agent.

Also the messages of ``/agent/v1/images``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from agent.wire.base import WireModel

_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}$")


class BadImage(ValueError):
    """What was given names no image that the node runs; the text is a clause that says what to change."""


@dataclass(frozen=True)
class Image:
    """One image. `repository` has neither tag nor digest; with a digest the tag says nothing."""

    repository: str
    tag: str | None
    digest: str | None

    @property
    def reference(self) -> str:
        """What a container is made of."""
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag or 'latest'}"


def parse(text: str, digest: str | None = None) -> Image:
    """The image in `text` (repository, with a tag or a digest or both), and its digest if that comes apart.

    BadImage when it is none, or when two digests differ.
    """
    name, _, own = text.partition("@")
    if not _NAME.match(name):
        raise BadImage(f"'{text}' is not the name of an image.")
    for found in (own or None, digest):
        if found is not None and not _DIGEST.match(found):
            raise BadImage(f"'{found}' is not an image digest; it is sha256: and 64 hex digits in lower case.")
    if own and digest and own != digest:
        raise BadImage(f"the image names the digest {own}, the spec {digest}.")
    last = name.rpartition("/")[2]
    tag = last.partition(":")[2] or None
    repository = name[: -len(tag) - 1] if tag else name
    return Image(repository=repository, tag=tag, digest=own or digest)


def plain(repository: str) -> str:
    """The repository without the names that Docker adds by itself."""
    for prefix in ("index.docker.io/", "docker.io/", "library/"):
        repository = repository.removeprefix(prefix)
    return repository


def is_approved(image: Image, approved: Iterable[str]) -> bool:
    """Whether `image` is named, by its digest, among `approved` (each ``repository@sha256:…``)."""
    names = {(plain(one.repository), one.digest) for one in map(parse, approved)}
    return image.digest is not None and (plain(image.repository), image.digest) in names


def admitted(text: str | None, digest: str | None, *, approved: Iterable[str], allow_tag_pulls: bool) -> Image:
    """The image, if the node runs it. BadImage says what to change, and where.

    With `allow_tag_pulls` every image is run. Without, only one of `approved`, named by its digest.
    """
    if not text:
        raise BadImage("a container needs an image; set the model's image or the node's default image.")
    image = parse(text, digest)
    if allow_tag_pulls:
        return image
    if image.digest is None:
        raise BadImage(
            f"the spec must name an approved image digest; '{text}' names none. Pin the image by its digest, or set "
            "allow_tag_pulls in agent.json on this node."
        )
    if not is_approved(image, approved):
        raise BadImage(
            f"image '{image.repository}' with digest '{image.digest}' is not approved on this node; add "
            f"{image.reference} to approved_images in its agent.json and restart the agent."
        )
    return image


class PullState(StrEnum):
    """How far a pull is. `READY`, `FAILED` and `CANCELLED` are final."""

    PULLING = "pulling"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"


class PullRequest(WireModel):
    """``PUT /agent/v1/images/pull/{pullId}``: have this image on the node."""

    image: str = Field(min_length=1, max_length=512)
    digest: str | None = Field(default=None, max_length=80)


class PullView(WireModel):
    """What the agent knows of a pull. None is not known; `reason` is a sentence for a person."""

    pull_id: str
    image: str
    state: PullState
    reason: str | None = None
    reason_code: str | None = None
    text: str = ""
    done_bytes: int | None = None
    total_bytes: int | None = None
    started_at: str
    finished_at: str | None = None


class ImageHere(WireModel):
    """One image that the node's Docker Engine has. `references` are its names by digest and by tag."""

    references: tuple[str, ...]
    size_bytes: int | None = None


class ImageList(WireModel):
    """``GET /agent/v1/images``. `problem` says why they cannot be listed; `pulls` are at work or ended lately."""

    images: tuple[ImageHere, ...] = ()
    problem: str | None = None
    truncated: bool = False
    pulls: tuple[PullView, ...] = ()
