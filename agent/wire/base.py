"""What every message shares, and the constants of the protocol."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

PROTOCOL_VERSIONS: tuple[int, ...] = (1,)
"""Protocol versions that this code speaks, best last. Two sides need one in common, else the node is Incompatible."""

API_PREFIX = "/agent/v1"

EPOCH_HEADER = "Mirbad-Epoch"
INSTANCE_HEADER = "Mirbad-Instance"
OPERATION_HEADER = "Mirbad-Operation"
MODEL_HEADER = "Mirbad-Model"
GENERATION_HEADER = "Mirbad-Generation"
ANSWER_HEADER = "Mirbad-Answer"
"""``engine`` on a relayed answer that the engine gave; without it the agent itself speaks."""

NODE_NAME_SUFFIX = "node.mirbad.internal"
"""An agent's certificate carries ``<uid>.node.mirbad.internal``; that name is checked, never the address."""

ENROLL_SERVER_NAME = "enroll.mirbad.internal"
"""The enroll listener's certificate carries this name. A joining agent checks it instead of the address it dialled: a
node's certificate comes from the same CA and is good for a server too, but never carries it."""

JSON_BODY_LIMIT = 1024 * 1024
"""Bytes of a JSON body that the agent reads on its control routes; relayed bodies are streamed and not counted here."""

Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""A whole number that fits where such are kept."""

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
        # JSON has no such numbers; who stores a message must be able to store each value of it.
        allow_inf_nan=False,
    )

    def to_wire(self) -> dict[str, Any]:
        """The message as JSON values, in camelCase."""
        return self.model_dump(mode="json", by_alias=True)


def node_server_name(uid: str) -> str:
    """The DNS name in the certificate of the node with `uid`."""
    return f"{uid}.{NODE_NAME_SUFFIX}"
