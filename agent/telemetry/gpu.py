"""The GPUs of this machine, whichever way they can be read, compared with those that were seen before."""

import asyncio
import atexit
import ctypes
import logging
import shutil
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from agent.telemetry import pcie
from agent.telemetry.cards import UNREADABLE, Card, Cards, NoDriver, lost_words
from agent.telemetry.driver import Driver
from agent.telemetry.smi import is_display
from agent.wire.status import GpuProcess, GpuStatus

_TIMEOUT_SECONDS = 20.0
_LIBRARY = "libnvidia-ml.so.1"
_PROCESSES_SHOWN = 32
_PCI_DEVICES = pcie.DEVICES

_log = logging.getLogger("mirbad.agent.gpu")
_driver = Driver()
_lock = threading.Lock()
_flight: "Future[Cards] | None" = None
_known: dict[str, Card] = {}

atexit.register(_driver.close)


def is_expected(nvidia_smi: str) -> bool:
    """Whether this machine has an NVIDIA card or driver, so that a driver which does not answer is a fault."""
    if shutil.which(nvidia_smi) or Path("/proc/driver/nvidia").exists() or any(Path("/dev").glob("nvidia*")):
        return True
    try:
        devices = list(_PCI_DEVICES.iterdir())
    except OSError:
        return False  # a machine without PCI, or one that does not let this user look
    return any(is_display(device) for device in devices)


def read_cards(nvidia_smi: str) -> Cards:
    """By the library, else by nvidia-smi. NoDriver with both answers; blocking, within a limit."""
    library = _library_problem()
    if library is not None and shutil.which(nvidia_smi) is None:
        # Neither way in: no process need be started to find that out.
        raise NoDriver(f"NVML: {library}; {nvidia_smi} is not found")
    return remember(_driver.cards(nvidia_smi, _PCI_DEVICES))


def _library_problem() -> str | None:
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return f"{_LIBRARY} is not found"
    return None


def remember(found: Cards) -> Cards:
    """`found`, and of each card that was there before and is not any more, that it is lost.

    A card that tells no UUID is the one that was seen at its place; slices come and go with their card's layout.
    """
    cards = list(found.cards)
    told = {card.uuid for card in cards} | {card.parent_uuid for card in cards}
    missing = [card for card in _known.values() if card.uuid not in told and card.parent_uuid is None]
    for before in missing:
        lost = replace(_silent(before, lost_words(before.index)), lost=True)
        place = next((number for number, card in enumerate(cards) if _is_place_of(card, before)), None)
        if place is None:
            cards.append(lost)
        else:
            cards[place] = replace(lost, lost=cards[place].lost, problem=cards[place].problem)
    for card in found.cards:
        if card.problem is None:
            _known[card.uuid] = card
            _known.pop(card.parent_uuid or "", None)
            _drop_slices_of(card)
    return replace(found, cards=tuple(sorted(cards, key=lambda card: card.index)))


def _silent(card: Card, problem: str) -> Card:
    """`card` as it is known, without what it does."""
    return replace(
        card,
        used_bytes=None,
        utilization_percent=None,
        temperature_celsius=None,
        power_watts=None,
        processes=None,
        problem=problem,
    )


def _unread(error: NoDriver) -> Cards | None:
    """The cards that answered before, while the driver does not; None when none has."""
    with _lock:
        known = sorted(_known.values(), key=lambda card: card.index)
    problem = f"It cannot be read: {error}"
    return Cards(tuple(_silent(card, problem) for card in known)) if known else None


def _is_place_of(card: Card, before: Card) -> bool:
    if not card.uuid.startswith(UNREADABLE):
        return False
    if card.pci_address is not None and before.pci_address is not None:
        return card.pci_address == before.pci_address
    return card.index == before.index


def _drop_slices_of(card: Card) -> None:
    if card.parent_uuid is None:
        for uuid in [uuid for uuid, known in _known.items() if known.parent_uuid == card.uuid]:
            del _known[uuid]


def forget() -> None:
    """Begin anew, as a fresh agent does."""
    global _flight  # noqa: PLW0603  the one question under way is nobody's any more
    with _lock:
        _flight = None
        _known.clear()
    _driver.close()


def _ask(nvidia_smi: str) -> "Future[Cards]":
    """The reading under way, or a new one: those who ask at once share it."""
    global _flight  # noqa: PLW0603  one driver, one question at a time
    with _lock:
        if _flight is not None and not _flight.done():
            return _flight
        future: Future[Cards] = Future()
        _flight = future

    def read() -> None:
        try:
            future.set_result(read_cards(nvidia_smi))
        except BaseException as error:  # noqa: BLE001 - given to whoever waits, which is where it is raised
            future.set_exception(error)

    # Not from a pool: its threads are waited for when the agent ends.
    threading.Thread(target=read, name="gpu", daemon=True).start()
    return future


async def cards(nvidia_smi: str = "nvidia-smi") -> Cards:
    """`read_cards` beside the event loop. NoDriver also when a broken driver does not answer."""
    waiting = asyncio.wrap_future(_ask(nvidia_smi))
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            return await asyncio.shield(waiting)
    except TimeoutError:
        raise NoDriver(f"the GPU driver did not answer in {_TIMEOUT_SECONDS:.0f} s", installed=True) from None


async def look(nvidia_smi: str = "nvidia-smi") -> tuple[Cards | None, str | None]:
    """The GPUs, or why they cannot be read; those that answered before are told beside the reason.

    Both are None on a machine that has none: such a node is whole.
    """
    try:
        return await cards(nvidia_smi), None
    except NoDriver as error:
        known = _unread(error)
        return known, str(error) if known or error.installed or is_expected(nvidia_smi) else None


async def gpu_statuses(nvidia_smi: str = "nvidia-smi") -> tuple[GpuStatus, ...]:
    """Every GPU now; none when there is no driver, and with a problem those that answered before."""
    try:
        found: Cards | None = await cards(nvidia_smi)
    except NoDriver as error:
        _log.debug("no GPUs: %s", error)
        found = _unread(error)
    return tuple(status_of(card) for card in found.cards) if found is not None else ()


def status_of(card: Card) -> GpuStatus:
    """What the master is told of a card."""
    return GpuStatus(
        uuid=card.uuid,
        index=card.index,
        lost=card.lost,
        used_bytes=card.used_bytes,
        total_bytes=card.total_bytes,
        utilization_percent=card.utilization_percent,
        temperature_celsius=card.temperature_celsius,
        power_watts=card.power_watts,
        power_limit_watts=card.power_limit_watts,
        process_count=None if card.processes is None else len(card.processes),
        processes=_shown(card),
        problem=card.problem,
    )


def _shown(card: Card) -> tuple[GpuProcess, ...] | None:
    if card.processes is None:
        return None
    largest = sorted(card.processes, key=lambda one: -(one.used_bytes or 0))[:_PROCESSES_SHOWN]
    return tuple(GpuProcess(pid=one.pid, name=one.name[:64], used_bytes=one.used_bytes) for one in largest)
