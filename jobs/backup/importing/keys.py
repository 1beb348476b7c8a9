"""The API keys of a backup on this master. Pure.

A key is known by its digest. A secret that was rotated away here, or revoked, never comes back by an import.
"""

from collections.abc import Iterable, Sequence

from jobs.backup.importing.plan import PlannedAction, PlannedKey
from jobs.backup.importing.present import FleetHere, KeyHere
from jobs.backup.records import ApiKeyRecord

_NAME_LENGTH = 100
_SUFFIX = " (imported)"


def planned_keys(keys: Sequence[ApiKeyRecord], here: FleetHere) -> tuple[tuple[PlannedKey, ...], tuple[str, ...]]:
    """Return the fate of each key, and notes."""
    planned = tuple(_key(number, key, here) for number, key in enumerate(keys))
    renamed = [one.name for one in planned if one.action == PlannedAction.CREATED and one.reason]
    notes = (f"API keys with a name that is taken here get another one: {', '.join(renamed)}.",) if renamed else ()
    return planned, notes


def _key(number: int, key: ApiKeyRecord, here: FleetHere) -> PlannedKey:
    known = _by_digest(key, here.keys)
    if known is not None:
        why = "It is revoked here and stays so." if known.is_revoked else "It has the same secret here."
        return PlannedKey(number, known.name, PlannedAction.KEPT, why)
    if key.revoked_at is not None:
        return PlannedKey(number, key.name, PlannedAction.LEFT_OUT, "It was revoked before the backup.")
    if key.expires_at is not None and key.expires_at <= here.now:
        return PlannedKey(number, key.name, PlannedAction.LEFT_OUT, "It has expired.")
    if any(one.name == key.name and one.created_at == key.created_at for one in here.keys):
        return PlannedKey(number, key.name, PlannedAction.KEPT, "It has a newer secret here; that one stays valid.")
    if any(one.name == key.name and not one.is_revoked for one in here.keys):
        name = f"{key.name[: _NAME_LENGTH - len(_SUFFIX)]}{_SUFFIX}"
        return PlannedKey(number, name, PlannedAction.CREATED, f"The name {key.name} belongs to another key here.")
    return PlannedKey(number, key.name, PlannedAction.CREATED)


def _by_digest(key: ApiKeyRecord, here: Iterable[KeyHere]) -> KeyHere | None:
    return next((one for one in here if key.digest in (one.digest, one.previous_digest)), None)
