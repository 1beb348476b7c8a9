"""The parts of a kind of operation: its data, its stages, its audit line, its texts; and the results of a step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Generic, Self, TypeVar
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer
from pydantic.alias_generators import to_camel

from jobs.errors import StepFailed
from jobs.models import Operation
from mirbad.kernel.actor import Actor
from mirbad.kernel.roles import OPERATOR, Role
from mirbad.tasking.tasks import TaskSignal

STEP = TaskSignal("jobs.step")


class OperationData(BaseModel):
    """Input or state of an operation, read from its row. Unknown keys are ignored, absent ones take their default."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )

    def to_json(self) -> dict[str, Any]:
        """Return the fields that were set, under the names that rows use."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def changed(self, **fields: Any) -> Self:
        """Return a copy with `fields` set. Raises TypeError for an unknown name, ValidationError for a value."""
        if unknown := fields.keys() - type(self).model_fields.keys():
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}.")
        return type(self)(**{name: getattr(self, name) for name in self.model_fields_set} | fields)


class NoData(OperationData):
    """Input or state of a kind that keeps none."""


Moment = Annotated[datetime, PlainSerializer(datetime.isoformat)]
"""A time, stored as ISO 8601."""

OptionalId = Annotated[
    UUID | None, BeforeValidator(lambda value: value or None), PlainSerializer(lambda v: str(v or ""))
]
"""A UUID, stored as text; None is stored as an empty text."""


class StoredFailure(OperationData):
    """The reason for which an operation goes back, kept until it ends."""

    code: str
    detail: str
    lines: tuple[str, ...] = ()

    @classmethod
    def of(cls, failure: StepFailed) -> Self:
        """Return `failure` in the form that a state keeps."""
        return cls(code=failure.step_code, detail=failure.detail, lines=failure.lines)

    def as_error(self, text: str = "") -> StepFailed:
        """Return the final failure, with `text` after its detail."""
        return StepFailed(self.code, f"{self.detail} {text}".rstrip(), final=True, lines=self.lines)


I_co = TypeVar("I_co", bound=OperationData, covariant=True)
S_co = TypeVar("S_co", bound=OperationData, covariant=True)
I = TypeVar("I", bound=OperationData)  # noqa: E741 - the input's type, beside S
S = TypeVar("S", bound=OperationData)


@dataclass(frozen=True, slots=True)
class Step(Generic[I_co, S_co]):
    """An operation at one stage, with typed input and state, as its row was when it was read.

    Nothing here is written back by itself.
    """

    operation_id: str
    kind: str
    stage: str
    attempt: int
    target_id: str
    node_id: str
    model_id: str
    actor: Actor
    input: I_co
    state: S_co
    created_at: datetime
    stage_since: datetime
    cancel_requested: bool

    def key(self, turn: int = 0, part: str = "") -> str:
        """Return the idempotency key of this stage's effect: the same for a repeat after a crash.

        `turn` counts refusals that were received and stored; a new try after one needs a new key. `part` tells several
        effects of one stage apart.
        """
        base = f"{self.operation_id}:{self.stage}-{part}" if part else f"{self.operation_id}:{self.stage}"
        return f"{base}:{turn}" if turn else base


AnyStep = Step[Any, Any]


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """Another operation that a step needs on a node; skipped while the node has an open one of its group."""

    kind: str
    stage: str
    node_id: str
    text: str
    action: str
    input: OperationData


@dataclass(frozen=True, slots=True)
class Go:
    """The stage is done: continue at `stage` at once. `state` is the new state, None for no change."""

    stage: str
    text: str = ""
    state: OperationData | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """The stage is not done: look again after `seconds`. `progress` is ``{text, doneBytes?, totalBytes?}``.

    `requests` are operations that the worker opens once the step is written; a step that waits for them repeats them.
    """

    seconds: float
    progress: Mapping[str, Any] = field(default_factory=dict)
    state: OperationData | None = None
    requests: tuple[NodeRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The operation succeeded."""

    text: str
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The operation ended on request, and left nothing behind."""

    text: str


Outcome = Go | Wait | Done | Cancelled
Run = Callable[[Step[I, S]], Outcome]
"""Does one effect outside any transaction. Raises `jobs.errors.StepFailed` or any MirbadError."""

End = Callable[[Step[I, S], str, str], None]
"""Called with the step, the outcome and the error's code inside the transaction that ends the operation."""


@dataclass(frozen=True, slots=True)
class Stage(Generic[I, S]):
    """A stage of a kind. `words` are its name on pages.

    An `aside` stage is no part of the way to success: an operation passes it only when it goes back. The lease of a
    `long` stage is renewed while its effect runs.
    """

    name: str
    words: str | Callable[[Step[I, S]], str]
    run: Run[I, S]
    aside: bool = False
    long: bool = False

    def words_for(self, step: Step[I, S]) -> str:
        """Return the name of the stage on the page of one operation."""
        return self.words if isinstance(self.words, str) else self.words(step)


def _nothing(*_: object) -> str:
    return ""


def _always(*_: object) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Audit(Generic[I, S]):
    """The audit line at the end of an operation. Actor, node, model, result and error code are the operation's."""

    action: str | Callable[[Step[I, S]], str]
    target: Callable[[Step[I, S]], str] = _nothing
    detail: Callable[[Step[I, S], str], str] = _nothing
    """Takes the step and the outcome."""
    applies: Callable[[Step[I, S], str], bool] = _always
    """Takes the step and the outcome; without a line, other lines of the operation record its end."""
    cancelled_is_failed: bool = True

    def action_of(self, step: Step[I, S]) -> str:
        """Return the action of one operation's line."""
        return self.action if isinstance(self.action, str) else self.action(step)


def _subject(step: AnyStep) -> str:
    return step.model_id or step.node_id or step.target_id


def _where(step: AnyStep) -> str:
    about_node = step.node_id == step.target_id and not step.model_id
    return f"on {step.node_id}" if step.node_id and not about_node else ""


def _node_ids(step: AnyStep) -> tuple[str, ...]:
    return (step.node_id,)


@dataclass(frozen=True, slots=True)
class Display(Generic[I, S]):
    """The texts of one operation on pages, where a kind needs others than the usual ones."""

    heading: str | Callable[[Step[I, S]], str] = ""
    """Stands before the subject; empty is the kind's title."""
    subject: Callable[[Step[I, S]], str] = _subject
    where: Callable[[Step[I, S]], str] = _where
    path: Callable[[Step[I, S]], tuple[str, ...]] | None = None
    """Returns the names of the stages that this operation passes, in order; None is all that are not aside."""
    node_ids: Callable[[Step[I, S]], tuple[str, ...]] = _node_ids
    """Returns the nodes in whose rows the operation is listed."""
    cancelling: str = "Its changes are undone first."
    """The effect of a cancellation, as a sentence."""
    last: str = "Done"
    """The name of the end after the last stage."""
    chip: bool = False
    """Shown beside the state of its node while it is open."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[I, S]):
    """A kind of operation. `title` is its name on pages; `stages` are in the usual order of a run."""

    name: str
    title: str
    concurrency_group: str
    Input: type[I]
    State: type[S]
    stages: tuple[Stage[I, S], ...]
    audit: Audit[I, S]
    on_end: End[I, S] | None = None
    """Writes more than the audit line when the operation ends."""
    role: Role = OPERATOR
    """The least role of a person who may cancel it: that of those who may ask for it."""
    while_fenced: bool = False
    """Continues while this master is fenced; all others wait for the takeover."""
    why_no_cancel: Callable[[Step[I, S]], str] = _nothing
    """Returns the reason why an operation cannot be cancelled; "" when it can."""
    display: Display[I, S] = field(default_factory=Display)

    def stage(self, name: str) -> Stage[I, S]:
        """Return a stage by its name. Raises KeyError."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def step(self, operation: Operation) -> Step[I, S]:
        """Return an operation of this kind with typed input and state. Raises ValidationError."""
        return Step(
            operation_id=operation.pk,
            kind=operation.kind,
            stage=operation.stage,
            attempt=operation.attempt,
            target_id=operation.target_id,
            node_id=operation.node_id_text,
            model_id=operation.model_id_text,
            actor=operation.requested_by,
            input=self.Input.model_validate(operation.input),
            state=self.State.model_validate(operation.state),
            created_at=operation.created_at,
            stage_since=operation.stage_since or operation.created_at,
            cancel_requested=operation.cancel_requested_at is not None,
        )

    def heading(self, step: Step[I, S]) -> str:
        """Return the words before the subject of one operation."""
        heading = self.display.heading
        return (heading if isinstance(heading, str) else heading(step)) or self.title

    def path(self, step: Step[I, S]) -> tuple[str, ...]:
        """Return the names of the stages that one operation passes to succeed, in order."""
        if self.display.path is not None:
            return self.display.path(step)
        return tuple(stage.name for stage in self.stages if not stage.aside)


AnyKind = Kind[Any, Any]
