"""System checks: settings that work but are hardly intended. `make up` reports them, too."""

from typing import Any

from django.core.checks import CheckMessage, register
from django.core.checks import Warning as Doubt

from mirbad.kernel.conf import Settings, settings


@register("mirbad")
def environment(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check the environment's values against each other."""
    return [*_reach(settings()), *_folder(settings())]


def _reach(given: Settings) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if given.listens_everywhere and not given.hosts:
        found.append(
            Doubt(
                f"MIRBAD_BIND is {given.bind}, but MIRBAD_HOSTS is empty: other machines cannot open the pages.",
                hint="List the names and addresses of this master.",
                id="mirbad.W001",
            )
        )
    if "*" in given.hosts:
        found.append(
            Doubt(
                "MIRBAD_HOSTS contains '*': any web page could reach this master under its own name.",
                hint="List the names and addresses of this master.",
                id="mirbad.W002",
            )
        )
    return found


def _folder(given: Settings) -> list[CheckMessage]:
    folder = given.secrets_dir
    if folder.is_dir() and folder.stat().st_mode & 0o077:
        return [
            Doubt(
                f"Other users of this machine can read {folder}.",
                hint=f"chmod 700 {folder}",
                id="mirbad.W003",
            )
        ]
    return []
