"""The GPUs of this machine, read by library or program, compared with those that were observed before."""

import asyncio
import atexit
import ctypes
import logging
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from agent import driver_places
from agent.clock import monotonic
from agent.telemetry import faults, hidden, pcie
from agent.telemetry.cards import UNREADABLE, Card, Cards, NoDriver, SlowDriver
from agent.telemetry.driver import DriverProcess
from agent.telemetry.smi import is_display
from agent.wire.status import GpuProcess, GpuStatus

_TIMEOUT_SECONDS = 20.0
_RECENT_SECONDS = 8.0
_STATUS_SECONDS = 2.0
"""A status waits so long for a reading in progress; then the one before counts, with its age."""

TRUSTED_SECONDS = 60.0
"""A reading that is older says nothing about the memory that is free now."""

_SLOW_SECONDS = 2.0
_PERSISTENCE = "Start its persistence daemon: systemctl enable --now nvidia-persistenced."
_PROCESSES_SHOWN = 32
_PCI_DEVICES = pcie.DEVICES

_log = logging.getLogger("mirbad.agent.gpu")
_driver = DriverProcess()
_lock = threading.Lock()
_reading: "Future[Cards] | None" = None
_last: "_LastReading | None" = None
_known: dict[str, Card] = {}
_released: list[bool] = []
"""Has an element while nothing may open the driver."""

_recalled: set[str] = set()
"""Cards of an earlier run of the agent. The first reading alone says whether they are still there."""


@dataclass(frozen=True)
class _LastReading:
    """The last reading that succeeded: when, and how long it took."""

    cards: Cards
    at: float
    took: float

    @property
    def age(self) -> float:
        return monotonic() - self.at


atexit.register(_driver.close)


def is_expected(nvidia_smi: str) -> bool:
    """Return whether this machine has an NVIDIA card or driver, so that a failing driver is a fault."""
    if driver_places.program(nvidia_smi) or driver_places.has_wsl_library():
        return True
    if Path("/proc/driver/nvidia").exists() or any(Path("/dev").glob("nvidia*")):
        return True
    try:
        devices = list(_PCI_DEVICES.iterdir())
    except OSError:
        return False  # a machine without PCI, or without permission to list it
    return any(is_display(device) for device in devices)


def read_cards(nvidia_smi: str) -> Cards:
    """Read by the library, else by nvidia-smi. NoDriver with both errors; blocking, within a limit."""
    library, program = _library_problem(), driver_places.program(nvidia_smi)
    if library is not None and program is None:
        # Both ways are missing: no process needs to be started to find out.
        raise NoDriver(f"NVML: {library}; {nvidia_smi} is not found")
    try:
        found = _driver.cards(program or nvidia_smi, _PCI_DEVICES)
    finally:
        if _released:
            _driver.close()
    return remember(hidden.without_doubtful_lists(found))


def _library_problem() -> str | None:
    if driver_places.has_wsl_library():
        return None
    try:
        ctypes.CDLL(driver_places.LIBRARY)
    except OSError:
        return f"{driver_places.LIBRARY} is not found"
    return None


def remember(found: Cards) -> Cards:
    """Return `found`, with each card that was observed before and is missing now marked as lost.

    A card without a UUID is the one that was observed in its slot; slices change with their card's layout.
    """
    for uuid in _recalled:
        _known.pop(uuid, None)
    _recalled.clear()
    cards = list(found.cards)
    reported = {card.uuid for card in cards} | {card.parent_uuid for card in cards}
    missing = [card for card in _known.values() if card.uuid not in reported and card.parent_uuid is None]
    for before in missing:
        lost = faults.lost(_silent(before, ""))
        place = next((number for number, card in enumerate(cards) if _is_place_of(card, before)), None)
        if place is None:
            cards.append(lost)
        else:
            now = cards[place]
            cards[place] = replace(lost, lost=now.lost, problem=now.problem, code=now.code, recovery=now.recovery)
    for card in found.cards:
        if card.problem is None:
            _known[card.uuid] = card
            _known.pop(card.parent_uuid or "", None)
            _drop_slices_of(card)
    marked = (faults.with_xid(card, found.xids) for card in sorted(cards, key=lambda card: card.index))
    return replace(found, cards=tuple(marked))


def recall(found: Cards) -> None:
    """Take over the cards of an earlier run, for as long as the driver has not answered this one."""
    with _lock:
        for card in found.cards if _last is None else ():
            if card.uuid not in _known:
                _known[card.uuid] = card
                _recalled.add(card.uuid)


def let_go(released: bool) -> None:
    """Keep everything of the agent away from the driver, so that a card can be reset and the driver be reloaded.

    Meanwhile the last reading counts, with its age. A reading that somebody needs (`cards`) opens the driver again.
    """
    if released and not _released:
        _released.append(True)
        _log.info("the GPUs are not read until the node is undrained or starts a model on them")
        if _driver.is_open:
            # Not here: a process that hangs in the driver ends late, or never.
            threading.Thread(target=_driver.close, name="gpu release", daemon=True).start()
    elif not released and _released:
        _released.clear()


def driver_versions() -> tuple[str | None, str | None]:
    """Return the version of the driver and the newest CUDA that it supports, by the last reading."""
    last = _last
    return (None, None) if last is None else (last.cards.driver_version, last.cards.cuda_version)


def slow_warning() -> str | None:
    """Return the warning about a driver that answers slowly, None for any other."""
    last = _last
    if last is None or last.took <= _SLOW_SECONDS:
        return None
    return f"The GPU driver takes {last.took:.1f} s to answer, so values of the GPUs are late. {_PERSISTENCE}"


def _trusted() -> _LastReading | None:
    last = _last
    return last if last is not None and last.age <= TRUSTED_SECONDS else None


def _silent(card: Card, problem: str) -> Card:
    """Return `card` without its measurements."""
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
    """Return the cards that were read before, for when the driver fails; None when none were."""
    with _lock:
        known = sorted(_known.values(), key=lambda card: card.index)
    problem = f"It cannot be read: {error}"
    return Cards(tuple(_silent(card, problem) for card in known)) if known else None


def _as_released() -> Cards | None:
    """Return the cards as they were read last, those of an earlier run without measurements; None when none were."""
    last = _last
    if last is not None:
        return last.cards
    with _lock:
        known = sorted(_known.values(), key=lambda card: card.index)
    return Cards(tuple(known)) if known else None


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
    """Forget everything, as a fresh agent does."""
    global _reading, _last  # noqa: PLW0603  the reading in progress is abandoned
    with _lock:
        _reading = _last = None
        _known.clear()
        _recalled.clear()
        _released.clear()
    _driver.close()


def _ask(nvidia_smi: str) -> "Future[Cards]":
    """Return the reading in progress, or a new one: concurrent callers share it."""
    global _reading  # noqa: PLW0603  one driver, one reading at a time
    with _lock:
        if _reading is not None and not _reading.done():
            return _reading
        future: Future[Cards] = Future()
        _reading = future

    def read() -> None:
        begun = monotonic()
        try:
            found = read_cards(nvidia_smi)
            _note(future, _LastReading(found, monotonic(), monotonic() - begun))
            future.set_result(found)
        except BaseException as error:  # noqa: BLE001 - given to whoever waits, which is where it is raised
            future.set_exception(error)

    # Not from a pool: the agent would wait for its threads at exit.
    threading.Thread(target=read, name="gpu", daemon=True).start()
    return future


def _note(future: "Future[Cards]", reading: _LastReading) -> None:
    global _last  # noqa: PLW0603  one driver, one last reading
    with _lock:
        if _reading is future:
            _last = reading


async def cards(nvidia_smi: str = "nvidia-smi", seconds: float = _TIMEOUT_SECONDS) -> Cards:
    """Run `read_cards` off the event loop. NoDriver; SlowDriver when it takes longer than `seconds`.

    The reading then goes on, and is shared by whoever asks next.
    """
    waiting = asyncio.wrap_future(_ask(nvidia_smi))
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.shield(waiting)
    except TimeoutError:
        raise SlowDriver(f"the GPU driver did not answer in {seconds:.0f} s. {_PERSISTENCE}") from None


async def recent(nvidia_smi: str = "nvidia-smi") -> Cards:
    """Return the GPUs now, or as they were within the last minute while the driver is slow. NoDriver, SlowDriver."""
    try:
        return await cards(nvidia_smi, _RECENT_SECONDS)
    except SlowDriver:
        if (last := _trusted()) is not None:
            return last.cards
        raise


async def read_or_problem(nvidia_smi: str = "nvidia-smi") -> tuple[Cards | None, str | None]:
    """Return the GPUs, or why they cannot be read; those that were read before come with the reason.

    Both are None on a machine without GPUs, which is healthy.
    """
    if _released and (kept := _as_released()) is not None:
        return kept, None
    try:
        return await recent(nvidia_smi), None
    except NoDriver as error:
        known = _unread(error)
        return known, str(error) if known or error.installed or is_expected(nvidia_smi) else None


async def gpu_statuses(nvidia_smi: str = "nvidia-smi") -> tuple[GpuStatus, ...]:
    """Return every GPU now; none without a driver, and those that were read before with a problem.

    While the driver is slow the last reading counts for a minute, with its age; while it is released, for as long as
    that lasts.
    """
    age = None
    if _released and (kept := _as_released()) is not None:
        age = round(_last.age, 1) if _last is not None else None
        return tuple(status_of(card, age).model_copy(update={"released": True}) for card in kept.cards)
    try:
        found: Cards | None = await cards(nvidia_smi, _STATUS_SECONDS)
    except NoDriver as error:
        last = _trusted() if isinstance(error, SlowDriver) else None
        if last is not None:
            found, age = last.cards, round(last.age, 1)
        else:
            _log.debug("no GPUs: %s", error)
            found = _unread(error)
    return tuple(status_of(card, age) for card in found.cards) if found is not None else ()


def status_of(card: Card, age: float | None = None) -> GpuStatus:
    """Return the status of a card for the master; `age` is that of its values in seconds, None for now."""
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
        problem_code=card.code,
        recovery=card.recovery,
        xid=card.xid,
        age_seconds=age,
    )


def _shown(card: Card) -> tuple[GpuProcess, ...] | None:
    if card.processes is None:
        return None
    largest = sorted(card.processes, key=lambda one: -(one.used_bytes or 0))[:_PROCESSES_SHOWN]
    return tuple(GpuProcess(pid=one.pid, name=one.name[:64], used_bytes=one.used_bytes) for one in largest)
