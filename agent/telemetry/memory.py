"""Whether GPUs have memory of their own: decided once per start of the agent, and kept."""

import logging
from dataclasses import dataclass
from pathlib import Path

from agent.config import AgentConfig
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


def probe(cards: Cards | None) -> MemoryModel:
    """What the cards say: memory of their own makes a node discrete."""
    own = cards is not None and any(card.total_bytes for card in cards.cards)
    return MemoryModel.DISCRETE if own else MemoryModel.UNIFIED


def decide(config: AgentConfig, cards: Cards | None, problem: str | None) -> Decision:
    """Discrete when a GPU reports memory of its own; the owner's word in agent.json goes before. Logs 2640 to 2644."""
    probed = probe(cards)
    if config.memory_model is not None:
        decision = Decision(config.memory_model, "set in agent.json")
        if cards is not None and cards.cards and probed is not config.memory_model:
            _log.info(
                "memory_model in agent.json forces %s; the GPUs report %s",
                config.memory_model,
                probed,
                extra={"id": 2644},
            )
    elif cards is None:
        decision = Decision(MemoryModel.UNIFIED, f"no GPU can be read ({problem or 'there is none'})")
        if problem and "failed" in problem:
            _log.warning(
                "nvidia-smi failed, so this node counts as unified until a restart: %s", problem, extra={"id": 2642}
            )
    else:
        count = len(cards.cards)
        decision = Decision(probed, "no GPU reported" if not count else f"{count} GPU(s) reported")
    _log.info("Memory model %s (%s)", decision.model, decision.reason, extra={"id": 2640})
    return decision


def decided(config: AgentConfig, cards: Cards | None, problem: str | None) -> Decision:
    """The decision of this process for the agent of `config`: made at the first call, the same from then on."""
    key = config.state_dir
    if key not in _kept:
        _kept[key] = decide(config, cards, problem)
    elif config.memory_model is None and cards is not None and key not in _told:
        reported = probe(cards)
        if reported is not _kept[key].model:
            _told.add(key)
            _log.warning(
                "The GPUs now report a %s node, but this agent decided %s at its start; restart the agent",
                reported,
                _kept[key].model,
                extra={"id": 2643},
            )
    return _kept[key]
