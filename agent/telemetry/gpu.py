"""The GPUs of this machine, whichever way they can be read."""

import asyncio
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent.telemetry import nvml, smi
from agent.telemetry.nvml import Cards, NoDriver
from agent.wire.status import GpuStatus

_TIMEOUT_SECONDS = 15.0
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA_PCI_VENDOR = "0x10de"

_log = logging.getLogger("mirbad.agent.gpu")
_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gpu")
_hanging: asyncio.Future[Cards] | None = None


def is_expected(nvidia_smi: str) -> bool:
    """Whether this machine has an NVIDIA card or driver, so that a driver which does not answer is a fault."""
    if shutil.which(nvidia_smi) or Path("/proc/driver/nvidia").exists() or any(Path("/dev").glob("nvidia*")):
        return True
    try:
        devices = list(_PCI_DEVICES.iterdir())
    except OSError:
        return False  # a machine without PCI, or one that does not let this user look
    return any(_is_nvidia_display(device) for device in devices)


def _is_nvidia_display(device: Path) -> bool:
    try:
        is_display = (device / "class").read_text().startswith("0x03")
        return is_display and (device / "vendor").read_text().strip() == _NVIDIA_PCI_VENDOR
    except OSError:
        return False


def read_cards(nvidia_smi: str) -> Cards:
    """By the library, else by nvidia-smi. NoDriver with both answers; blocking."""
    try:
        return nvml.read_cards()
    except NoDriver as by_library:
        try:
            return smi.read_cards(nvidia_smi)
        except NoDriver as by_program:
            raise NoDriver(f"NVML: {by_library}; {by_program}", installed=by_library.installed) from by_program


async def cards(nvidia_smi: str = "nvidia-smi") -> Cards:
    """`read_cards` beside the event loop. NoDriver also while a broken driver does not answer."""
    global _hanging  # noqa: PLW0603  one driver, one question at a time: a hanging call must not be asked again
    if _hanging is not None and not _hanging.done():
        raise NoDriver("the GPU driver has not answered an earlier question yet", installed=True)
    future = asyncio.get_running_loop().run_in_executor(_thread, read_cards, nvidia_smi)
    _hanging = future
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            return await asyncio.shield(future)
    except TimeoutError:
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise NoDriver(f"the GPU driver did not answer in {_TIMEOUT_SECONDS:.0f} s", installed=True) from None


async def look(nvidia_smi: str = "nvidia-smi") -> tuple[Cards | None, str | None]:
    """The GPUs, or why they cannot be read. Both are None on a machine that has none: such a node is whole."""
    try:
        return await cards(nvidia_smi), None
    except NoDriver as error:
        return None, str(error) if error.installed or is_expected(nvidia_smi) else None


async def gpu_statuses(nvidia_smi: str = "nvidia-smi") -> tuple[GpuStatus, ...]:
    """Every GPU now; none when there is no driver."""
    try:
        found = await cards(nvidia_smi)
    except NoDriver as error:
        _log.debug("no GPUs: %s", error)
        return ()
    return tuple(
        GpuStatus(
            uuid=card.uuid,
            used_bytes=card.used_bytes,
            total_bytes=card.total_bytes,
            utilization_percent=card.utilization_percent,
            temperature_celsius=card.temperature_celsius,
            power_watts=card.power_watts,
            problem=card.problem,
        )
        for card in found.cards
    )
