"""Faults of a card that only its machine's owner can mend: it is lost, or must be reset, rebooted or drained.

`code` is for programs, `recovery` the driver's recovery action as a word, and the text says what to do.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

from agent.telemetry.cards import Card, Cards, Xid

LOST, NEEDS_RESET, NEEDS_REBOOT, NEEDS_DRAIN = "gpu_lost", "gpu_needs_reset", "gpu_needs_reboot", "gpu_needs_drain"

KERNEL_LOG = Path("/dev/kmsg")
_LOG_BYTES = 8 * 1024**2
_RECORD_BYTES = 16 * 1024
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?\): (\d{1,4})")

_RESET = "Drain the node, and reset the GPU once its models are off: nvidia-smi --gpu-reset -i {number}."
_REBOOT = "Drain the node, and reboot the machine once its models are off."

# By the driver's number: code, recovery action, what is wrong, what to do.
_ACTIONS: dict[int, tuple[str, str, str, str]] = {
    1: (NEEDS_RESET, "reset", "needs a reset before it can be used again", f"{_RESET} If that fails, reboot."),
    2: (NEEDS_REBOOT, "reboot", "needs a reboot of the machine", _REBOOT),
    3: (
        NEEDS_DRAIN,
        "drain_p2p",
        "must not exchange data with other GPUs",
        "Drain the node: models on several of its GPUs have to end before it can be reset.",
    ),
    4: (NEEDS_RESET, "drain_and_reset", "works in part only, and needs a reset", _RESET),
    5: (
        NEEDS_DRAIN,
        "recover_imex_domain",
        "needs its IMEX domain to be recovered",
        "Restart nvidia-imex on the nodes of its NVLink domain.",
    ),
    6: (NEEDS_RESET, "bus_reset", "needs a reset of its bus", f"{_RESET} If that fails, reboot."),
    7: (NEEDS_REBOOT, "reboot", "needs a reboot of the machine", _REBOOT),
}
_NONE = 0


def lost(card: Card, *, error: str = "") -> Card:
    """Return `card` as one that fell off its bus. `error` is the driver's own word for it."""
    text = f"GPU {_label(card)} is lost: it no longer answers on its bus{_quoted(error)}. Reboot the machine. "
    return replace(card, lost=True, code=LOST, problem=f"{text}If this repeats, check the card.")


def needs_reset(card: Card, *, error: str = "") -> Card:
    """Return `card` as one that the driver refuses to use before a reset."""
    return _wanting(card, 1, error)


def recovering(card: Card, action: int | None) -> Card:
    """Return `card` with the driver's recovery action, which it may be used with or not; its values are kept."""
    if action is None or action == _NONE:
        return card
    return _wanting(card, action, f"recovery action {action}")


def _wanting(card: Card, action: int, error: str) -> Card:
    unknown = (NEEDS_REBOOT, f"action_{action}", "needs to be recovered", "See GPU Recovery Action in nvidia-smi -q.")
    code, word, wrong, remedy = _ACTIONS.get(action, unknown)
    text = f"GPU {_label(card)} {wrong}{_quoted(error)}. {remedy.format(number=_label(card))}"
    return replace(card, code=code, recovery=word, problem=text)


def _label(card: Card) -> str:
    return card.place or str(card.index)


def _quoted(error: str) -> str:
    return f" ({error})" if error else ""


def with_xid(card: Card, xids: tuple[Xid, ...]) -> Card:
    """Return a faulty card with the last Xid that the kernel's log has for it."""
    if card.code is None or card.pci_address is None or card.xid is not None:
        return card
    found = next((xid.number for xid in reversed(xids) if card.pci_address.startswith(xid.slot)), None)
    if found is None:
        return card
    return replace(card, xid=found, problem=f"{card.problem} The kernel's log has Xid {found} for it.")


def note_xids(found: Cards, log: Path = KERNEL_LOG) -> Cards:
    """Return `found` with the Xids of the kernel's log, if one of its cards has a fault. Empty without permission."""
    if not any(card.code for card in found.cards):
        return found
    return replace(found, xids=parse_xids(_kernel_log(log)))


def parse_xids(text: str) -> tuple[Xid, ...]:
    """Return the Xids in the text of a kernel log, oldest first, by slot."""
    return tuple(
        Xid(f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.", int(number))
        for domain, bus, device, number in _XID.findall(text)
    )


def _kernel_log(log: Path) -> str:
    """Return the kernel's log. Its device gives one record a read, and an error once records were dropped."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    parts, size = [], 0
    try:
        while size < _LOG_BYTES:
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BrokenPipeError:
                continue
            if not record:
                break
            parts.append(record)
            size += len(record)
    except OSError:
        pass  # its end, or no permission after all
    finally:
        os.close(descriptor)
    return b"".join(parts).decode("utf-8", "replace")
