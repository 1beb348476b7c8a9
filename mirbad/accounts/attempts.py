"""The limit of log-in attempts: counted before a password is checked, by address, by name and by browser.

A counter is a row, and an attempt is one conditional UPDATE of it: of any number of posts at the same moment, exactly
as many pass as the limit says. A good log-in takes back its own attempt and nothing else.

A browser that was signed in as somebody before carries a signed cookie. Its attempts as that person have a limit of
their own, so strangers who guess cannot keep the person out.
"""

import hashlib
import ipaddress
import math
import secrets
import threading
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Case, F, Q, QuerySet, Value, When
from django.urls import reverse

from audit import log as audit
from mirbad.accounts.errors import TooManyLogins
from mirbad.accounts.models import LoginCounter
from mirbad.api.addresses import client_address
from mirbad.kernel import actor, clock

WINDOW = timedelta(minutes=1)
# An end beyond was written before the clock was set back. Twice the window, for the clocks of several web processes.
_FARTHEST = 2 * WINDOW
LIMITS = {LoginCounter.ADDRESS: 5, LoginCounter.DEVICE: 5, LoginCounter.NAME: 10}
DEVICE_COOKIE = "mirbad_device"
_DEVICE_SALT = "mirbad.accounts.device"
_DEVICE_SECONDS = 400 * 24 * 3600
_FLUSH_SECONDS = 1.0
_SENTENCES = {
    LoginCounter.ADDRESS: "Too many attempts to log in from this address. Try again in a minute.",
    LoginCounter.DEVICE: "Too many attempts to log in from this browser. Try again in a minute.",
    LoginCounter.NAME: "Too many attempts to log in under this name. Try again in a minute.",
}


@dataclass(frozen=True)
class Counter:
    """One counter of an attempt. `subject` is the address or name on audit lines."""

    scope: str
    subject: str

    @property
    def key(self) -> str:
        """The digest under which the row is kept: names of any length, and passwords typed there by mistake."""
        return hashlib.sha256(f"{self.scope}\0{self.subject}".encode("utf-8", "replace")).hexdigest()


@dataclass(frozen=True)
class Attempt:
    """One post of the log-in form. `enforced` may refuse it, `counted` only count it."""

    address: str
    enforced: tuple[Counter, ...]
    counted: tuple[Counter, ...] = ()


def of(request: Any, name: str) -> Attempt:
    """Return the attempt of `request` to log in as `name`."""
    address, folded = client_address(request), folded_name(name)
    strangers = (Counter(LoginCounter.ADDRESS, network_of(address)), Counter(LoginCounter.NAME, folded))
    device, _, owner = request.get_signed_cookie(
        DEVICE_COOKIE, default="", salt=_DEVICE_SALT, max_age=_DEVICE_SECONDS
    ).partition(":")
    if device and owner == strangers[1].key:
        return Attempt(address, (Counter(LoginCounter.DEVICE, device),), strangers)
    return Attempt(address, strangers)


def remember_device(request: Any, response: Any, name: str) -> None:
    """Mark the browser of `response` as one in which `name` was signed in."""
    response.set_signed_cookie(
        DEVICE_COOKIE,
        f"{secrets.token_hex(16)}:{Counter(LoginCounter.NAME, folded_name(name)).key}",
        salt=_DEVICE_SALT,
        max_age=_DEVICE_SECONDS,
        path=reverse("login"),
        secure=request.is_secure(),
        httponly=True,
        samesite="Lax",
    )


def folded_name(name: str) -> str:
    """Return `name` such that spellings of one name are one counter."""
    # PostgreSQL stores no NUL, and the form refuses it only after the attempt was counted.
    return unicodedata.normalize("NFKC", name[:1000].replace("\0", "\N{REPLACEMENT CHARACTER}")).strip().casefold()


def network_of(address: str) -> str:
    """Return the unit that counts as one address: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))


def admit(attempt: Attempt, name: str) -> tuple[Counter, ...]:
    """Count `attempt` and return where. Raises TooManyLogins when a limit is reached; a lock-out is recorded once."""
    now = clock.now()
    taken = []
    for counter in (*attempt.enforced, *attempt.counted):
        if _take(counter, now):
            taken.append(counter)
        elif counter in attempt.enforced:
            raise _refusal(counter, attempt, name, now)
    return tuple(taken)


def take_back(taken: Iterable[Counter]) -> None:
    """Take back one attempt: the password was right, or was never checked."""
    for counter in taken:
        _rows(counter).filter(attempts__gt=0).update(attempts=F("attempts") - 1)


def close_ended() -> None:
    """Record lock-outs that ended without another attempt, and delete counters that no longer count."""
    ended = LoginCounter.objects.filter(until__lt=clock.now() - WINDOW)
    for row in ended.filter(refused__gt=1)[:1000]:
        _close(row)
    ended.filter(refused__lte=1).delete()


def _rows(counter: Counter) -> QuerySet[LoginCounter]:
    return LoginCounter.objects.filter(key=counter.key)


def _over(now: datetime) -> Q:
    return Q(until__lte=now) | Q(until__gt=now + _FARTHEST)


def _take(counter: Counter, now: datetime) -> bool:
    """Count one attempt in one UPDATE. Return False when the limit is reached.

    The window begins with its first attempt. Later ones, good or not, do not move its end: wrong passwords minutes
    apart never add up.
    """
    limit, over = LIMITS[counter.scope], _over(now)
    row = _rows(counter).first()
    if row is None:
        new = LoginCounter(key=counter.key, scope=counter.scope, subject=counter.subject[:150], until=now + WINDOW)
        LoginCounter.objects.bulk_create([new], ignore_conflicts=True)
    elif row.until <= now or row.until > now + _FARTHEST:
        _close(row)
    elif row.attempts >= limit:
        return False  # a flood of refused posts reads and does not write
    passed = _rows(counter).filter(over | Q(attempts__lt=limit))
    return passed.update(
        attempts=Case(When(over, then=Value(1)), default=F("attempts") + 1),
        until=Case(When(over, then=Value(now + WINDOW)), default=F("until")),
    ) == 1  # fmt: skip


def _refusal(counter: Counter, attempt: Attempt, name: str, now: datetime) -> TooManyLogins:
    until, refused = _rows(counter).values_list("until", "refused").first() or (now + WINDOW, 0)
    if refused or not _record_lock_out(counter, attempt, name):
        _flood.add(counter.key, until, now)
    wait = max(1, math.ceil((min(until, now + WINDOW) - now).total_seconds()))
    return TooManyLogins(_SENTENCES[counter.scope], retry_after_seconds=wait)


def _record_lock_out(counter: Counter, attempt: Attempt, name: str) -> bool:
    """Record the first post that a lock-out refuses. Return False when another one was the first."""
    with transaction.atomic():
        first = _rows(counter).filter(refused=0).update(refused=1) == 1
        if first:
            sentence = f"{_SENTENCES[counter.scope]} {LIMITS[counter.scope]} attempts failed."
            audit.record_refusal("login", actor.api(attempt.address), TooManyLogins(sentence), target=name)
    return first


def _close(row: LoginCounter) -> None:
    """Record how many posts a lock-out that is over refused. Of two processes that find it, one does."""
    refused = row.refused + _flood.take(row.key, row.until)
    is_address = row.scope == LoginCounter.ADDRESS
    who = actor.api(row.subject) if is_address else actor.system("login")
    with transaction.atomic():
        same = LoginCounter.objects.filter(key=row.key, until=row.until, attempts=row.attempts, refused=row.refused)
        if same.update(attempts=0, refused=0) and refused > 1:
            over = TooManyLogins(f"A lock-out of a minute is over. It refused {refused} attempts to log in.")
            audit.record_refusal("login", who, over, target=row.subject if row.scope == LoginCounter.NAME else "")


class _Flood:
    """Refused posts of this process that are not in the database yet: a flood is one write a second, not one a post.

    The last second of a process that is killed is not counted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, datetime], int] = defaultdict(int)
        self._flushed: datetime | None = None

    def add(self, key: str, until: datetime, now: datetime) -> None:
        """Count one refused post of the lock-out of `key` that ends at `until`."""
        with self._lock:
            self._waiting[key, until] += 1
            if self._flushed is not None and abs((now - self._flushed).total_seconds()) < _FLUSH_SECONDS:
                return
            self._flushed = now
            waiting, self._waiting = self._waiting, defaultdict(int)
        for (one, end), number in waiting.items():
            LoginCounter.objects.filter(key=one, until=end).update(refused=F("refused") + number)

    def take(self, key: str, until: datetime) -> int:
        """Return and forget the posts that were not written."""
        with self._lock:
            return self._waiting.pop((key, until), 0)


_flood = _Flood()
