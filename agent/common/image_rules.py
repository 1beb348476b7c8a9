"""Names of container images, and the rule that decides which of them a node runs."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}$")


class BadImage(ValueError):
    """The name is not an image that the node runs; the text is a clause that says how to change it."""


@dataclass(frozen=True)
class Image:
    """One image. `repository` has neither tag nor digest; with a digest the tag says nothing."""

    repository: str
    tag: str | None
    digest: str | None

    @property
    def reference(self) -> str:
        """The name from which a container is created."""
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag or 'latest'}"


def parse(text: str, digest: str | None = None) -> Image:
    """Return the image in `text` (repository, with tag, digest or both); `digest` may be given separately.

    Raises BadImage for an invalid name, or when the two digests differ.
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
    """Return the repository without the prefixes that Docker adds."""
    for prefix in ("index.docker.io/", "docker.io/", "library/"):
        repository = repository.removeprefix(prefix)
    return repository


def is_approved(image: Image, approved: Iterable[str]) -> bool:
    """Return whether `image` is listed by its digest in `approved` (each ``repository@sha256:…``)."""
    names = {(plain(one.repository), one.digest) for one in map(parse, approved)}
    return image.digest is not None and (plain(image.repository), image.digest) in names


def admitted(text: str | None, digest: str | None, *, approved: Iterable[str], allow_tag_pulls: bool) -> Image:
    """Return the image, if the node runs it. Raises BadImage that says how and where to change it.

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
