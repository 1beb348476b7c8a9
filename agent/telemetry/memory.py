"""Whether GPUs have memory of their own: decided once per start of the agent, and kept."""

import logging
from dataclasses import dataclass
from pathlib import Path

from agent.config import AgentConfig
from agent.telemetry import gpu
from agent.telemetry.nvml import Cards
from agent.wire.capability import MemoryModel

_log = logging.getLogger("mirbad.agent.memory")
_kept: dict[Path, "Decision"] = {}
_told: set[Path] = set()


@dataclass(frozen=True)
class Decision:
    """The memory model of this node, and why."""

    model: MemoryModel
    reason: str


@dataclass(frozen=True)
class Look:
    """The GPUs now, why they cannot be read if they cannot, and the decision that stands."""

    cards: Cards | None
    problem: str | None
    decision: Decision


def probe(cards: Cards | None) -> MemoryModel:
    """What the cards say: memory of their own makes a node discrete."""
    own = cards is not None and any(card.total_bytes for card in cards.cards)
    return MemoryModel.DISCRETE if own else MemoryModel.UNIFIED


async def look(config: AgentConfig) -> Look:
    """Look at the GPUs; the first look of an agent decides. A probe that fails in any way means unified."""
    deciding = config.state_dir not in _kept and config.memory_model is None
    try:
        cards, problem = await gpu.look(config.nvidia_smi)
    except Exception as error:  # noqa: BLE001 - the probe's edge: a driver's fault must not keep a node from its work
        cards, problem = None, f"The GPUs cannot be read: {type(error).__name__}: {error}"
        _log.exception(
            "The GPU probe failed%s",
            " while the memory model was decided; the node counts as unified until a restart" if deciding else "",
            extra={"id": 2641} if deciding else None,
        )
        if deciding:
            _keep(config, Decision(MemoryModel.UNIFIED, "the GPU probe failed"))
    return Look(cards, problem, decided(config, cards, problem))


def decide(config: AgentConfig, cards: Cards | None, problem: str | None) -> Decision:
    """Discrete when a GPU reports memory of its own; the owner's word in agent.json goes before. Logs 2642."""
    if config.memory_model is not None:
        return Decision(config.memory_model, "set in agent.json")
    if cards is None and problem:
        _log.warning(
            "nvidia-smi failed while the memory model was decided, so this node counts as unified until a restart with "
            "a driver that works: %s",
            problem,
            extra={"id": 2642},
        )
        return Decision(MemoryModel.UNIFIED, f"no GPU can be read ({problem})")
    count = len(cards.cards) if cards is not None else 0
    return Decision(probe(cards), f"{count} GPU(s) reported" if count else "no GPU reported")


def _keep(config: AgentConfig, decision: Decision) -> None:
    _kept[config.state_dir] = decision
    _log.info(
        "Memory model %s (%s): admission, the memory in the status and feature flags follow it",
        decision.model,
        decision.reason,
        extra={"id": 2640},
    )


def decided(config: AgentConfig, cards: Cards | None, problem: str | None) -> Decision:
    """The decision of this process for the agent of `config`: made at the first call, the same from then on.

    Logs 2640, and once 2643 or 2644 when the GPUs disagree with it.
    """
    key = config.state_dir
    if key not in _kept:
        _keep(config, decide(config, cards, problem))
    kept = _kept[key]
    if cards is None or not cards.cards or key in _told or probe(cards) is kept.model:
        return kept
    _told.add(key)
    if config.memory_model is None:
        _log.warning(
            "The GPUs now report a %s node, but this agent decided %s at its start; restart the agent",
            probe(cards),
            kept.model,
            extra={"id": 2643},
        )
    else:
        _log.info(
            "memory_model in agent.json forces %s; the GPUs report a %s node. Nothing is to be done when that is meant",
            kept.model,
            probe(cards),
            extra={"id": 2644},
        )
    return kept


def forget(state_dir: Path) -> None:
    """The agent of that state folder ended in this process; its next start decides anew."""
    _kept.pop(state_dir, None)
    _told.discard(state_dir)
