"""Recovery mode: the master waits for the backup of a fleet, makes nothing of its own, and connects to no node.

Read from the setting and from files of the data folder, before anything is made. A marker file asks for it, or the
setting, until a recovery was installed in this data folder: then there is a record of it.
"""

from mirbad.kernel.conf import Settings

MARKER = "recovery"
RECORD = "recovery-installed.json"
STAGING = "recovery-staging"
FLEET_RESTORE = "fleet-restore"
START_AGAIN = 75
"""The exit code of a web process that leaves the recovery mode, for whatever supervises it (EX_TEMPFAIL)."""


def is_on(given: Settings) -> bool:
    """Return whether the master of these settings is in recovery mode."""
    if (given.data / MARKER).is_file():
        return True
    return given.recovery_mode == FLEET_RESTORE and not (given.data / RECORD).exists()


def is_left_set(given: Settings) -> bool:
    """Return whether the setting still asks for a recovery that is done, and is ignored therefore."""
    return given.recovery_mode == FLEET_RESTORE and (given.data / RECORD).exists()


def left_set_text(given: Settings) -> str:
    """Return the sentence for a setting that is ignored, for the log and for pages."""
    return (
        f"MIRBAD_RECOVERY_MODE=fleet-restore is still set, but a fleet recovery already finished in {given.data}. "
        "The setting is ignored. Remove it."
    )
