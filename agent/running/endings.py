"""How engines end, in words."""

from agent.deliveries.base import DeliveryFailed, Seen


class Ended(Exception):
    """The engine is gone or must go; `reason` is a sentence."""

    def __init__(self, code: str, reason: str, seen: Seen | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.seen = seen


def how_it_ended(seen: Seen) -> str:
    """A sentence for an engine that ended by itself."""
    if seen.out_of_memory:
        return "The engine was ended by the system because the memory ran out (exit code 137)."
    if seen.exit_code is None:
        return "The engine ended; how is not known (an earlier agent started it, or its container was removed)."
    if seen.exit_code == 137:
        return "The engine was killed (exit code 137): often the system does that when the memory runs out."
    return f"The engine ended by itself with exit code {seen.exit_code}."


def unwritable(error: OSError) -> DeliveryFailed:
    """Nothing is started that could not be found again."""
    return DeliveryFailed(
        f"The agent cannot write its state folder ({error.strerror}); make room on that disk, or make it writable.",
        code="state_unwritable",
    )
