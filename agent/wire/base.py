"""The base of every message, and the constants of the protocol."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

PROTOCOL_VERSIONS: tuple[int, ...] = (1,)
"""Protocol versions of this code, best last. Two sides without a common version are Incompatible."""

API_PREFIX = "/agent/v1"

EPOCH_HEADER = "Mirbad-Epoch"
INSTANCE_HEADER = "Mirbad-Instance"
OPERATION_HEADER = "Mirbad-Operation"
MODEL_HEADER = "Mirbad-Model"
GENERATION_HEADER = "Mirbad-Generation"
KEY_HEADER = "Mirbad-Key"
"""The id of the API key of a relayed request. It stays at the agent: if the engine ends, the event names the key."""

ANSWER_HEADER = "Mirbad-Answer"
"""``engine`` on a relayed response of the engine; without it the response is the agent's own."""

NODE_NAME_SUFFIX = "node.mirbad.internal"
"""An agent's certificate contains ``<uid>.node.mirbad.internal``; peers verify that name, never the address."""

ENROLL_SERVER_NAME = "enroll.mirbad.internal"
"""The name in the enroll listener's certificate. A joining agent verifies it instead of the address: a node's
certificate has the same CA and is valid for servers too, but never contains this name.
"""

JSON_BODY_LIMIT = 1024 * 1024
"""Bytes of a JSON body on the agent's control routes; relayed bodies are streamed and not limited here."""

Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""A whole number of 64 bits, as databases store it."""

BootId = Annotated[str, Field(max_length=64)]

Sha256Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class WireModel(BaseModel):
    """A frozen message. Unknown fields are ignored when read (an older side meets a newer one), never sent."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        # JSON has no such numbers, and every value of a message must be storable.
        allow_inf_nan=False,
    )

    def to_wire(self) -> dict[str, Any]:
        """Return the message as JSON values, in camelCase."""
        return self.model_dump(mode="json", by_alias=True)


def node_server_name(uid: str) -> str:
    """Return the DNS name in the certificate of the node with `uid`."""
    return f"{uid}.{NODE_NAME_SUFFIX}"
