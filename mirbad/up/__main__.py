"""``python -m mirbad.up``: what `make up` runs."""

import os
import sys

from mirbad.kernel.conf import BadSettings, read_settings
from mirbad.up.errors import CannotStart
from mirbad.up.progress import Progress
from mirbad.up.session import Session
from mirbad.up.signals import listening


def main() -> int:
    """Run Mirbad until it is stopped. 0 after a clean stop, 1 when something stands in the way, 2 for a bad setting."""
    progress = Progress()
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
