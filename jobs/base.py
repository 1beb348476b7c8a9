"""What a kind of operation is: stages, each one idempotent effect, and what a stage may answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mirbad.tasking.tasks import Bell

STEP = Bell("jobs.step")


@dataclass(frozen=True, slots=True)
class Step:
    """One claimed stage of an operation, as it stood at the claim. Nothing here is written back by itself."""

    operation_id: str
    kind: str
    stage: str
    fence: int
    attempt: int
    target_id: str
    node_id: str
    model_id: str
    actor: str
    input: Mapping[str, Any]
    state: Mapping[str, Any]
    created_at: datetime
    stage_since: datetime
    cancel_requested: bool

    def key(self, turn: int = 0) -> str:
        """The idempotency key of this stage's effect: the same for a repeat after a crash.

        `turn` counts refusals that were received and stored; a new try after one needs a new key.
        """
        base = f"{self.operation_id}:{self.stage}"
        return f"{base}:{turn}" if turn else base


@dataclass(frozen=True, slots=True)
class Ask:
    """Another operation that a step wants on a node. It is left out when that node's lane is taken already."""

    kind: str
    stage: str
    node_id: str
    text: str
    action: str
    input: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Go:
    """The stage is done: on to `stage` at once. `state` is merged into what is known."""

    stage: str
    text: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet: look again after `seconds`. `progress` is ``{text, doneBytes?, totalBytes?}``.

    `asks` are operations that the worker opens once the step is written; a step that waits for them asks again.
    """

    seconds: float
    progress: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    asks: tuple[Ask, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The operation succeeded."""

    text: str
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The operation ended because someone asked for it, and left nothing behind."""

    text: str


Outcome = Go | Wait | Done | Cancelled
Stage = Callable[[Step], Outcome]
"""Does one effect outside any transaction. Raises `jobs.errors.StepFailed` or any MirbadError."""

Ending = Callable[[Step, str, str], None]
"""Called with the step, the outcome and the error's code inside the transaction that ends the operation."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of operation: its stages by name, and what else is written when it ends."""

    name: str
    lane: str
    stages: Mapping[str, Stage]
    ended: Ending
    while_fenced: bool = False
    """Whether it goes on while this master may not command; all others wait for the takeover."""
    why_no_cancel: Callable[[str, Mapping[str, Any]], str] = lambda _stage, _input: ""
    """Why an operation at that stage, with that input, cannot be cancelled; "" when it can."""
