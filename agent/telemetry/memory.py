"""The memory model: whether GPUs have their own memory. Decided by the first GPUs that are read."""

import asyncio
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from agent.config import AgentConfig
from agent.state import read_json, write_json
from agent.telemetry import gpu
from agent.telemetry.cards import Cards, from_json
from agent.wire.capability import MemoryModel

_log = logging.getLogger("mirbad.agent.memory")
_kept: dict[Path, "MemoryModelDecision"] = {}
_warned: set[Path] = set()
_stored: dict[Path, Cards | None] = {}
"""The GPUs in the file of each state folder."""

_FILE = "gpus.json"


@dataclass(frozen=True)
class MemoryModelDecision:
    """The memory model of this node, and the reason. One that no GPU was read for is made again once there is one."""

    model: MemoryModel
    reason: str
    is_final: bool = False


@dataclass(frozen=True)
class GpuReading:
    """The GPUs now, the reason why they cannot be read, and the decision in force."""

    cards: Cards | None
    problem: str | None
    decision: MemoryModelDecision


def model_of(cards: Cards | None) -> MemoryModel:
    """Return the memory model of the cards: a card with its own memory makes a node discrete."""
    own = cards is not None and any(card.total_bytes for card in cards.cards)
    return MemoryModel.DISCRETE if own else MemoryModel.UNIFIED


async def read(config: AgentConfig) -> GpuReading:
    """Read the GPUs; the first ones decide. Until then those of an earlier run do; without any it is unified."""
    await asyncio.to_thread(_recall, config)
    deciding = config.state_dir not in _kept and config.memory_model is None
    try:
        cards, problem = await gpu.read_or_problem(config.nvidia_smi)
    except Exception as error:  # noqa: BLE001 - the probe's edge: a driver's fault must not keep a node from its work
        cards, problem = None, f"The GPUs cannot be read: {type(error).__name__}: {error}"
        _log.exception(
            "The GPU probe failed%s",
            " while the memory model was decided; the node counts as unified until it works" if deciding else "",
            extra={"id": 2641} if deciding else None,
        )
        if deciding:
            _keep(config, MemoryModelDecision(MemoryModel.UNIFIED, "the GPU probe failed"))
    if cards is not None and problem is None:
        await asyncio.to_thread(_store, config, cards)
    return GpuReading(cards, problem, decided(config, cards, problem))


def before_reading(config: AgentConfig) -> MemoryModel:
    """Return the memory model for the time until the driver has answered: decided, or the likely one."""
    if config.memory_model is not None:
        return config.memory_model
    if (kept := _kept.get(config.state_dir)) is not None and kept.is_final:
        return kept.model
    earlier = _read_stored(config)
    if earlier is not None:
        return model_of(earlier)
    return MemoryModel.DISCRETE if gpu.is_expected(config.nvidia_smi) else MemoryModel.UNIFIED


def _recall(config: AgentConfig) -> None:
    """Take over the GPUs of an earlier run, once a run."""
    if config.state_dir not in _stored:
        _stored[config.state_dir] = earlier = _read_stored(config)
        if earlier is not None:
            gpu.recall(earlier)


def _read_stored(config: AgentConfig) -> Cards | None:
    try:
        return from_json(read_json(config.state_dir / _FILE) or {})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _store(config: AgentConfig, cards: Cards) -> None:
    """Keep the constant facts about the GPUs, for a start with a driver that is slow."""
    known = [
        replace(
            card, used_bytes=None, utilization_percent=None, temperature_celsius=None, power_watts=None,
            processes=None, link=None,
        )
        for card in cards.cards
        if card.problem is None
    ]  # fmt: skip
    kept = Cards(tuple(known), cards.driver_version)
    if kept == _stored.get(config.state_dir) or not config.state_dir.is_dir():
        return
    try:
        write_json(config.state_dir / _FILE, kept.to_json())
    except OSError as error:
        _log.warning("%s cannot be written: %s", _FILE, error.strerror)
    _stored[config.state_dir] = kept


def decide(config: AgentConfig, cards: Cards | None, problem: str | None) -> MemoryModelDecision:
    """Return discrete when a GPU reports its own memory; the value in agent.json has precedence. Logs 2642."""
    if config.memory_model is not None:
        return MemoryModelDecision(config.memory_model, "set in agent.json", is_final=True)
    if cards is None and problem:
        _log.warning(
            "nvidia-smi failed while the memory model was decided: this node counts as unified until its driver "
            "answers: %s",
            problem,
            extra={"id": 2642},
        )
        return MemoryModelDecision(MemoryModel.UNIFIED, f"no GPU can be read ({problem})")
    count = len(cards.cards) if cards is not None else 0
    reason = f"{count} GPU(s) reported" if count else "no GPU reported"
    return MemoryModelDecision(model_of(cards), reason, is_final=count > 0)


def _keep(config: AgentConfig, decision: MemoryModelDecision) -> None:
    _kept[config.state_dir] = decision
    _log.info(
        "Memory model %s (%s); it determines admission, reported memory and feature flags",
        decision.model,
        decision.reason,
        extra={"id": 2640},
    )


def decided(config: AgentConfig, cards: Cards | None, problem: str | None) -> MemoryModelDecision:
    """Return the decision for the agent of `config`: made at the first call, and again at the first that has GPUs.

    Logs 2640, and once 2643 or 2644 when the GPUs disagree with it.
    """
    key = config.state_dir
    before = _kept.get(key)
    if before is None or (not before.is_final and cards is not None and cards.cards):
        _keep(config, decide(config, cards, problem))
    kept = _kept[key]
    if cards is None or not cards.cards or key in _warned or model_of(cards) is kept.model:
        return kept
    _warned.add(key)
    if config.memory_model is None:
        _log.warning(
            "The GPUs now report a %s node, but this agent decided %s at its start. Restart the agent",
            model_of(cards),
            kept.model,
            extra={"id": 2643},
        )
    else:
        _log.info(
            "memory_model in agent.json forces %s; the GPUs report a %s node. Ignore this if it is intended",
            kept.model,
            model_of(cards),
            extra={"id": 2644},
        )
    return kept


def forget(state_dir: Path) -> None:
    """Forget the decision for a state folder, whose agent has ended in this process."""
    _kept.pop(state_dir, None)
    _stored.pop(state_dir, None)
    _warned.discard(state_dir)
