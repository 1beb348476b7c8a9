"""The comparison of an estimate with free capacity, part by part: one rule for preview, ranking and placement."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.common import budget
from mirbad.kernel.sizes import size
from models_app.fit.estimate import Estimate

_TIGHT = 0.05
"""A part is tight when less than this fraction of it would remain free."""


class FitState(StrEnum):
    """The result of a fit, for one part or for all."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does_not_fit"
    UNKNOWN = "unknown"


WORDS = {
    FitState.FITS: "fits",
    FitState.TIGHT: "fits tightly",
    FitState.DOES_NOT_FIT: "does not fit now",
    FitState.UNKNOWN: "fit unknown",
}
_WORST = (FitState.DOES_NOT_FIT, FitState.UNKNOWN, FitState.TIGHT, FitState.FITS)


@dataclass(frozen=True, slots=True)
class Capacity:
    """One part of a node: a GPU, or the host with an empty `uuid`. Bytes; None is not reported.

    `promised` is the memory of models that are starting and do not show as used yet.
    """

    label: str
    uuid: str = ""
    total: int | None = None
    free: int | None = None
    reserve: int = 0
    promised: int = 0

    @property
    def usable(self) -> int | None:
        """Return the bytes that a model may take here, at most the total without the reserve."""
        found = budget.usable(self.free, self.reserve, self.promised)
        if found is None:
            return None
        if self.total is not None:
            found = min(found, self.total - self.reserve)
        return max(0, found)


@dataclass(frozen=True, slots=True)
class FitLine:
    """The verdict on one part. `left` is the free memory that would remain."""

    capacity: Capacity
    need: int | None
    state: FitState
    reason: str = ""

    @property
    def left(self) -> int | None:
        """Return the bytes that would remain; negative is the number missing."""
        usable = self.capacity.usable
        return None if usable is None or self.need is None else usable - self.need

    @property
    def missing(self) -> int:
        """Return the missing bytes; 0 when there is enough, or when that is unknown."""
        return max(0, -(self.left or 0))


@dataclass(frozen=True, slots=True)
class FitVerdict:
    """The worst state of its `lines`; `reasons` are sentences, the most important first."""

    state: FitState
    lines: tuple[FitLine, ...]
    reasons: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Return the state as shown to a person."""
        return WORDS[self.state]


def judge(need: Estimate, gpus: Sequence[Capacity], host: Capacity) -> FitVerdict:
    """Compare `need` with all of `gpus` and the `host`."""
    lines = [_line(capacity, need.gpu_bytes, need, claims=True) for capacity in gpus]
    lines.append(_line(host, need.host_bytes, need, claims=not need.gpus))
    state = next(state for state in _WORST if any(line.state is state for line in lines))
    if need.problems:
        state = FitState.DOES_NOT_FIT
    reasons = [line.reason for state_ in _WORST for line in lines if line.state is state_ and line.reason]
    return FitVerdict(
        state, tuple(lines), tuple(dict.fromkeys([*(text for _, text in need.problems), *reasons, *need.reasons]))
    )


def _line(capacity: Capacity, need: int | None, estimate: Estimate, *, claims: bool) -> FitLine:
    claimed = _claim(capacity, estimate) if claims else None
    if claimed is not None and need is not None and need > claimed:
        text = (
            f"{capacity.label}: needs {size(need)}, but the engine takes only {estimate.claim:.0%} of it "
            f"({size(claimed)}). Raise --gpu-memory-utilization, shorten the context, or use more GPUs."
        )
        return FitLine(capacity, need, FitState.DOES_NOT_FIT, text)
    usable = capacity.usable
    if claimed is not None and usable is not None and claimed > usable and (need is None or need <= usable):
        return FitLine(capacity, claimed, FitState.DOES_NOT_FIT, _claims_too_much(capacity, estimate, claimed, usable))
    required = None if need is None else budget.required(need, estimate.claim if claims else None, capacity.total)
    if usable is None:
        return FitLine(capacity, required, FitState.UNKNOWN, f"{capacity.label}: free memory not reported.")
    if required is None:
        return FitLine(capacity, None, FitState.UNKNOWN)
    least = estimate.least_bytes if claims else None
    if required > usable and least is not None and least <= usable:
        text = (
            f"{capacity.label}: the full context needs {size(required)}, {size(usable)} free; the engine shortens it."
        )
        return FitLine(capacity, least, FitState.TIGHT, text)
    if required > usable:
        text = f"{capacity.label}: needs {size(need or required)}, {size(usable)} free."
        if need is not None and required > need:
            text += f" The engine would take {estimate.claim:.0%} of it, {size(required)}."
        return FitLine(capacity, required, FitState.DOES_NOT_FIT, text)
    if claimed is None and capacity.total and usable - required < capacity.total * _TIGHT:
        text = f"{capacity.label}: {size(usable - required)} of {size(usable)} would remain free."
        return FitLine(capacity, required, FitState.TIGHT, text)
    return FitLine(capacity, required, FitState.FITS)


def _claim(capacity: Capacity, estimate: Estimate) -> int | None:
    return None if estimate.claim is None or capacity.total is None else int(capacity.total * estimate.claim)


def _claims_too_much(capacity: Capacity, estimate: Estimate, claimed: int, usable: int) -> str:
    share = int(usable / (capacity.total or 1) * 100) / 100
    return (
        f"{capacity.label}: the engine takes {estimate.claim:.0%} of it ({size(claimed)}) whatever the model needs, "
        f"{size(usable)} free. Free memory, or set --gpu-memory-utilization {share:.2f}."
    )
