"""Whether a need goes into what is free now, part by part. The same rule previews, plans and applies."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.wire import budget
from models_app.fit.estimate import Estimate

GIB = 1024**3
_TIGHT = 0.05
"""A part is tight when less than this of it would be left."""


class State(StrEnum):
    """How well something fits."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does_not_fit"
    UNKNOWN = "unknown"


WORDS = {
    State.FITS: "fits",
    State.TIGHT: "fits tightly",
    State.DOES_NOT_FIT: "does not fit now",
    State.UNKNOWN: "fit unknown",
}
_WORST = (State.DOES_NOT_FIT, State.UNKNOWN, State.TIGHT, State.FITS)


@dataclass(frozen=True, slots=True)
class Room:
    """One part of a node: a GPU, or with an empty `uuid` the host. Bytes; None is not reported.

    `promised` is what starts on the way will take and is not seen as used yet.
    """

    label: str
    uuid: str = ""
    total: int | None = None
    free: int | None = None
    reserve: int = 0
    promised: int = 0

    @property
    def usable(self) -> int | None:
        """What a model may take here, never more than the capacity behind the reserve."""
        found = budget.usable(self.free, self.reserve, self.promised)
        if found is None:
            return None
        if self.total is not None:
            found = min(found, self.total - self.reserve)
        return max(0, found)


@dataclass(frozen=True, slots=True)
class Line:
    """The verdict on one part. `left` is what would remain of what can be used."""

    room: Room
    need: int | None
    state: State
    reason: str = ""

    @property
    def left(self) -> int | None:
        """Bytes that would remain; negative is what is missing."""
        usable = self.room.usable
        return None if usable is None or self.need is None else usable - self.need

    @property
    def missing(self) -> int:
        """Bytes that are short; 0 when there is enough, or when that is not known."""
        return max(0, -(self.left or 0))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst of its `lines`; `reasons` are sentences, the weightiest first."""

    state: State
    lines: tuple[Line, ...]
    reasons: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The state for a person."""
        return WORDS[self.state]


def judge(need: Estimate, gpus: Sequence[Room], host: Room) -> Verdict:
    """Whether `need` goes on all of `gpus` and into the `host`."""
    lines = [_line(room, need.gpu_bytes, need, claims=True) for room in gpus]
    lines.append(_line(host, need.host_bytes, need, claims=not need.gpus))
    state = next(state for state in _WORST if any(line.state is state for line in lines))
    if need.problems:
        state = State.DOES_NOT_FIT
    told = [line.reason for state_ in _WORST for line in lines if line.state is state_ and line.reason]
    return Verdict(
        state, tuple(lines), tuple(dict.fromkeys([*(text for _, text in need.problems), *told, *need.reasons]))
    )


def _line(room: Room, need: int | None, estimate: Estimate, *, claims: bool) -> Line:
    claimed = _claim(room, estimate) if claims else None
    if claimed is not None and need is not None and need > claimed:
        text = (
            f"{room.label}: the model needs about {_gib(need)}, and the engine takes {estimate.claim:.0%} of it, "
            f"{_gib(claimed)}. Raise --gpu-memory-utilization, shorten the context or use more GPUs."
        )
        return Line(room, need, State.DOES_NOT_FIT, text)
    usable = room.usable
    if claimed is not None and usable is not None and claimed > usable and (need is None or need <= usable):
        return Line(room, claimed, State.DOES_NOT_FIT, _claims_too_much(room, estimate, claimed, usable))
    wanted = need if claimed is None or need is None else max(need, claimed)
    if usable is None:
        return Line(room, wanted, State.UNKNOWN, f"{room.label}: its free memory is not reported.")
    if wanted is None:
        return Line(room, None, State.UNKNOWN)
    least = estimate.least_bytes if claims else None
    if wanted > usable and least is not None and least <= usable:
        held = f"the engine shortens it to what {_gib(usable)} hold."
        text = f"{room.label}: the whole context needs {_gib(wanted)}; {held}"
        return Line(room, least, State.TIGHT, text)
    if wanted > usable:
        text = f"{room.label}: the model needs about {_gib(need or wanted)} and {_gib(usable)} can be used now."
        if need is not None and wanted > need:
            text += f" The engine would take {estimate.claim:.0%} of it, {_gib(wanted)}."
        return Line(room, wanted, State.DOES_NOT_FIT, text)
    if claimed is None and room.total and usable - wanted < room.total * _TIGHT:
        text = f"{room.label}: {_gib(usable - wanted)} would be left of {_gib(usable)}."
        return Line(room, wanted, State.TIGHT, text)
    return Line(room, wanted, State.FITS)


def _claim(room: Room, estimate: Estimate) -> int | None:
    return None if estimate.claim is None or room.total is None else int(room.total * estimate.claim)


def _claims_too_much(room: Room, estimate: Estimate, claimed: int, usable: int) -> str:
    share = int(usable / (room.total or 1) * 100) / 100
    return (
        f"{room.label}: the engine takes {estimate.claim:.0%} of it, {_gib(claimed)}, whatever the model needs, and "
        f"{_gib(usable)} can be used now. Free it, or set --gpu-memory-utilization {share:.2f}."
    )


def _gib(value: int) -> str:
    return f"{value / GIB:.1f} GiB"
