"""Ticks of the accounts."""

from mirbad.accounts import attempts
from mirbad.tasking.tasks import tick


@tick("accounts.logins")
def logins() -> None:
    """Record log-in lock-outs that are over, and forget old attempts."""
    attempts.close_ended()
