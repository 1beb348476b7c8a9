"""Names of images as a launch refuses them; the rule itself is on the wire, since the master asks it too."""

from agent.config import AgentConfig
from agent.errors import AgentError
from agent.wire import images
from agent.wire.errors import AgentCode
from agent.wire.images import BadImage, Image

__all__ = ["Image", "admitted", "parse"]


def _rejected(why: BadImage) -> AgentError:
    return AgentError(AgentCode.SPEC_REJECTED, f"Launch spec rejected: {why}")


def parse(text: str, digest: str | None = None) -> Image:
    """`agent.wire.images.parse`. AgentError SPEC_REJECTED when it is no image, or when two digests differ."""
    try:
        return images.parse(text, digest)
    except BadImage as error:
        raise _rejected(error) from error


def admitted(config: AgentConfig, text: str | None, digest: str | None) -> Image:
    """The image, if this node runs it. AgentError SPEC_REJECTED says what to change, and where."""
    try:
        return images.admitted(text, digest, approved=config.approved_images, allow_tag_pulls=config.allow_tag_pulls)
    except BadImage as error:
        raise _rejected(error) from error
