"""Image references in a launch, refused as AgentError; the rule itself is shared with the master."""

from agent.common import image_rules
from agent.common.image_rules import BadImage, Image
from agent.config import AgentConfig
from agent.errors import AgentError
from agent.wire.errors import AgentCode

__all__ = ["Image", "admitted", "parse"]


def _rejected(why: BadImage) -> AgentError:
    return AgentError(AgentCode.SPEC_REJECTED, f"Launch spec rejected: {why}")


def parse(text: str, digest: str | None = None) -> Image:
    """Parse as `agent.common.image_rules.parse`. AgentError SPEC_REJECTED for a bad image or two different digests."""
    try:
        return image_rules.parse(text, digest)
    except BadImage as error:
        raise _rejected(error) from error


def admitted(config: AgentConfig, text: str | None, digest: str | None) -> Image:
    """Return the image if this node runs it. AgentError SPEC_REJECTED with the setting to change."""
    try:
        return image_rules.admitted(
            text, digest, approved=config.approved_images, allow_tag_pulls=config.allow_tag_pulls
        )
    except BadImage as error:
        raise _rejected(error) from error
