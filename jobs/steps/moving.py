"""The input of a move, as its own stages and other kinds read it."""

from collections.abc import Mapping

from jobs.base import OperationData, OptionalId
from jobs.models import Operation
from jobs.steps.artifacts import StoredSpec

MOVE = "move"
HANDOVER = "handover"
STOP_FIRST = "stop-first"


class MoveInput(OperationData):
    """The input of a move. `source` is the placement that is moved, None for a model that is placed nowhere.

    `target` is the id of the placement on the target. `running` is whether the model is to run there. `specs` are sets
    of files that were pinned with a token, by the position of their source. `on_behalf_of` is an evacuation.
    """

    mode: str = STOP_FIRST
    source: OptionalId = None
    source_node: str = ""
    target: OptionalId = None
    gpu_uuids: tuple[str, ...] = ()
    generation: int = 1
    running: bool = False
    specs: Mapping[int, StoredSpec] = {}
    on_behalf_of: str = ""


def input_of(operation: Operation) -> MoveInput:
    """Return the input of a move. Raises ValidationError."""
    return MoveInput.model_validate(operation.input)
