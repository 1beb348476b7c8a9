"""Migration of the database, and the rows that every master has."""

from django.db import OperationalError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from mirbad.kernel.conf import settings
from mirbad.up.errors import CannotStart
from mirbad.up.progress import ProgressDisplay


def migrate(progress: ProgressDisplay) -> int:
    """Apply missing migrations and return their number. Raises CannotStart."""
    progress.now("checking the database")
    try:
        executor = MigrationExecutor(connection)
        _require_known(executor)
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
        if plan:
            from django.core.management import call_command

            progress.now(f"migrating the database ({len(plan)} migrations)")
            call_command("migrate", interactive=False, verbosity=0)
    except OperationalError as error:
        raise CannotStart(sentence(error)) from error
    return len(plan)


def _require_known(executor: MigrationExecutor) -> None:
    own = {label for label, _ in executor.loader.disk_migrations}
    applied = MigrationRecorder(connection).applied_migrations()
    unknown = sorted(
        f"{app}.{name}" for app, name in applied if app in own and (app, name) not in executor.loader.graph.nodes
    )
    if unknown:
        raise CannotStart(
            f"The data was written by a newer Mirbad (migration {unknown[-1]}). "
            "Start that version, or restore older data."
        )


def sentence(error: OperationalError) -> str:
    """Return the reason why the database cannot be used, in its own words."""
    words = " ".join(str(error).split())
    if settings().database_url:
        return f"The database of DATABASE_URL is not usable: {words}"
    return f"The database {settings().data / 'mirbad.sqlite3'} is not usable: {words}"
