#!/usr/bin/env python
"""Django's command line for the master."""

import os
import sys


def main() -> None:
    """Run a management command; a bad setting is one line and exit code 2."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mirbad.settings")
    from django.core.management import execute_from_command_line

    from mirbad.kernel import files
    from mirbad.kernel.conf import BadSettings, settings
    from mirbad.up import restore
    from mirbad.up.errors import CannotStart

    files.keep_private()
    try:
        if sys.argv[1:2] != ["restore"]:
            restore.settle_unless_running(settings())
        execute_from_command_line(sys.argv)
    except BadSettings as error:
        sys.exit(f"Mirbad cannot start:\n{error}")
    except CannotStart as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
