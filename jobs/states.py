"""The outcome of an operation. Diagram: docs/states/."""

from mirbad.kernel.states import StateTable

OPEN = "open"
SUCCEEDED = "succeeded"
FAILED = "failed"
CANCELLED = "cancelled"

OUTCOME = StateTable(
    "operation",
    {
        OPEN: frozenset({SUCCEEDED, FAILED, CANCELLED}),
        SUCCEEDED: frozenset(),
        FAILED: frozenset(),
        CANCELLED: frozenset(),
    },
)

CONCURRENCY_GROUPS = ("run", "placement", "identity", "work")
"""Operations of one group exclude each other on the same target."""
