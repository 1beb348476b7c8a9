"""Messages of ``/agent/v1/images``: pulls of container images, and the images that a node has."""

from enum import StrEnum

from pydantic import Field

from agent.wire.base import WireModel


class PullState(StrEnum):
    """The progress of a pull. `READY`, `FAILED` and `CANCELLED` are final."""

    PULLING = "pulling"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"


class PullFailure(StrEnum):
    """Codes of a pull that the registry, the network or the disk refused; `PULL_FAILED` is any other reason."""

    REGISTRY_UNAUTHORIZED = "registry_unauthorized"
    REGISTRY_FORBIDDEN = "registry_forbidden"
    REGISTRY_RATE_LIMITED = "registry_rate_limited"
    REGISTRY_UNTRUSTED = "registry_untrusted"
    REGISTRY_UNREACHABLE = "registry_unreachable"
    IMAGE_NOT_FOUND = "image_not_found"
    PULL_FAILED = "pull_failed"


class PullRequest(WireModel):
    """``PUT /agent/v1/images/pull/{pullId}``: pull this image to the node."""

    image: str = Field(min_length=1, max_length=512)
    digest: str | None = Field(default=None, max_length=80)


class PullView(WireModel):
    """The state of a pull at the agent. None is unknown; `reason` is a sentence for a person."""

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


class LocalImage(WireModel):
    """One image of the node's Docker Engine. `references` are its names by digest and by tag."""

    references: tuple[str, ...]
    size_bytes: int | None = None


class ImageList(WireModel):
    """``GET /agent/v1/images``. `problem` says why images cannot be listed; `pulls` run or ended recently."""

    images: tuple[LocalImage, ...] = ()
    problem: str | None = None
    truncated: bool = False
    pulls: tuple[PullView, ...] = ()
