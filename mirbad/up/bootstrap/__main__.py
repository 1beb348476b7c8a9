"""``python -m mirbad.up.bootstrap``: started by `make up`, exits when everything is up. Not for a shell.

A process of its own, so that the supervisor's side never holds Django in memory.
"""

import logging
import os
import sys

from mirbad.kernel.errors import MirbadError
from mirbad.up.errors import CannotStart
from mirbad.up.progress import ProgressDisplay
from mirbad.up.session import REPORT


def report(word: str) -> None:
    """Report the progress to the supervisor's side."""
    if descriptor := os.environ.get(REPORT):
        os.write(int(descriptor), f"{word}\n".encode())


def main() -> int:
    """Return 0 when all is up; 1 when something failed, which was printed."""
    import django

    django.setup()
    from django.db import OperationalError

    from mirbad.kernel import logs
    from mirbad.kernel.conf import settings
    from mirbad.up.bootstrap import database, steps

    logs.configure("bootstrap", console=False)
    progress = ProgressDisplay()
    try:
        return 0 if steps.run(progress, report) else 1
    except CannotStart as error:
        progress.warn(str(error))
    except MirbadError as error:
        progress.warn(f"{error.detail} ({error.code})")
    except OperationalError as error:
        progress.warn(database.sentence(error))
    except OSError as error:
        logging.getLogger("mirbad.up").exception("the bootstrap failed")
        progress.warn(f"{error.filename or 'A file'} is not usable: {error.strerror or error}")
    except Exception:
        logging.getLogger("mirbad.up").exception("the bootstrap failed")
        progress.warn(f"Bootstrap failed (internal error). See {settings().logs_dir / 'bootstrap.log'}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
