"""Parts of the tests of takeovers: an operation worked on until it is over, and a copy of a master."""


def run(table, operation, steps=12):
    """Work on an operation until it is over."""
    for _ in range(steps):
        table.step(operation.pk)
        operation.refresh_from_db()
        if operation.finished_at:
            return operation
    raise AssertionError(f"not over: {operation.stage}")


def copy(table):
    """A copy of the acting master, acting now."""
    return table.restore(table.dump())
