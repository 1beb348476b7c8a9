"""Names of images, and which of them the owner of a machine lets run."""

import re
from dataclasses import dataclass

from agent.config import AgentConfig
from agent.errors import AgentError
from agent.wire.errors import AgentCode

_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}$")


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


def _rejected(why: str) -> AgentError:
    return AgentError(AgentCode.SPEC_REJECTED, f"Launch spec rejected: {why}")


def parse(text: str, digest: str | None = None) -> Image:
    """The image in `text` (repository, with a tag or a digest or both), and its digest if that comes apart.

    AgentError SPEC_REJECTED when it is none, or when two digests differ.
    """
    name, _, own = text.partition("@")
    if not _NAME.match(name):
        raise _rejected(f"'{text}' is not the name of an image.")
    for found in (own or None, digest):
        if found is not None and not _DIGEST.match(found):
            raise _rejected(f"'{found}' is not an image digest; it is sha256: and 64 hex digits in lower case.")
    if own and digest and own != digest:
        raise _rejected(f"the image names the digest {own}, the spec {digest}.")
    last = name.rpartition("/")[2]
    tag = last.partition(":")[2] or None
    repository = name[: -len(tag) - 1] if tag else name
    return Image(repository=repository, tag=tag, digest=own or digest)


def _plain(repository: str) -> str:
    """The repository without the names that Docker adds by itself."""
    for prefix in ("index.docker.io/", "docker.io/", "library/"):
        repository = repository.removeprefix(prefix)
    return repository


def admitted(config: AgentConfig, text: str | None, digest: str | None) -> Image:
    """The image, if this node runs it. AgentError SPEC_REJECTED says what to change, and where.

    With `allow_tag_pulls` every image is run. Without, only one of `approved_images`, named by its digest.
    """
    if not text:
        raise _rejected("a container needs an image; set the model's image or the node's default image.")
    image = parse(text, digest)
    if config.allow_tag_pulls:
        return image
    if image.digest is None:
        raise _rejected(
            f"the spec must name an approved image digest; '{text}' names none. Pin the image by its digest, or set "
            "allow_tag_pulls in agent.json on this node."
        )
    approved = {(_plain(one.repository), one.digest) for one in map(parse, config.approved_images)}
    if (_plain(image.repository), image.digest) not in approved:
        raise _rejected(
            f"image '{image.repository}' with digest '{image.digest}' is not approved on this node; add "
            f"{image.reference} to approved_images in its agent.json and restart the agent."
        )
    return image
