"""``python -m mirbad.up``: the program behind `make up`."""

import os
import sys

from mirbad.kernel import files
from mirbad.kernel.conf import BadSettings, read_settings
from mirbad.up.errors import CannotStart
from mirbad.up.progress import ProgressDisplay
from mirbad.up.session import Session
from mirbad.up.signals import listening


def main() -> int:
    """Run Mirbad until it is stopped. 0 after a clean stop, 1 when it cannot start, 2 for a bad setting."""
    files.keep_private()
    progress = ProgressDisplay()
    try:
        settings = read_settings(os.environ)
    except BadSettings as error:
        sys.stderr.write(f"Mirbad cannot start: {error}\n")
        return 2
    with listening() as stops:
        try:
            return Session(settings, progress, stops).run()
        except CannotStart as error:
            sys.stderr.write(f"Mirbad cannot start: {error}\n")
            return 1


if __name__ == "__main__":
    sys.exit(main())
