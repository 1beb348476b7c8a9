"""The clock of this machine against the master's: a wrong one makes certificates fail, and is then hard to find."""

import logging
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from agent import clock
from agent.common.tls_pins import EXPIRED, NOT_YET_VALID

log = logging.getLogger(__name__)

TOLERANCE = timedelta(minutes=15)
"""The difference beyond which the master shows the node as Degraded."""

_AGAIN_SECONDS = 600.0
_REMEDY = "Correct it: timedatectl set-ntp true."


class Clocks:
    """Says in the log that this machine's clock is wrong, at most every ten minutes."""

    def __init__(self) -> None:
        self._said_at: float | None = None

    def note_refusal(self, error: ssl.SSLCertVerificationError) -> None:
        """Note that a caller's certificate was refused. Times are checked after the issuer, so it is the fleet's."""
        if error.verify_code == NOT_YET_VALID:
            self._say(
                "refused the master: its certificate is not valid yet by this machine's clock (%s), so that is behind. "
                "%s",
                _shown(clock.now()),
                _REMEDY,
            )
        elif error.verify_code == EXPIRED:
            self._say(
                "refused the master: its certificate has expired by this machine's clock (%s). Is the clock ahead? %s",
                _shown(clock.now()),
                _REMEDY,
            )

    def note_date(self, header: str | None) -> None:
        """Note the time in a request of the master."""
        theirs = _parsed(header)
        if theirs is None:
            return
        ours = clock.now()
        if abs(ours - theirs) <= TOLERANCE:
            self._said_at = None
            return
        which = "behind" if ours < theirs else "ahead of"
        self._say(
            "this machine's clock says %s and is %s the master's, which says %s. Correct the wrong one, or "
            "certificates will fail",
            _shown(ours),
            which,
            _shown(theirs),
        )

    def _say(self, text: str, *values: object) -> None:
        now = clock.monotonic()
        if self._said_at is not None and now - self._said_at < _AGAIN_SECONDS:
            return
        self._said_at = now
        log.warning(text, *values)


def _shown(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _parsed(header: str | None) -> datetime | None:
    if not header:
        return None
    try:
        found = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
