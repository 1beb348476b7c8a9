"""System checks: settings that can be used but are hardly what the operator wants. `make up` says them too."""

import ipaddress
from typing import Any

from django.core.checks import CheckMessage, register
from django.core.checks import Warning as Doubt

from mirbad.kernel.conf import Settings, settings


@register("mirbad")
def environment(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Checks of the environment's values against each other."""
    return [*_reach(settings()), *_folder(settings())]


def _reach(given: Settings) -> list[CheckMessage]:
    try:
        local = ipaddress.ip_address(given.bind).is_loopback
    except ValueError:
        local = given.bind == "localhost"
    found: list[CheckMessage] = []
    if not local and not given.hosts:
        found.append(
            Doubt(
                f"MIRBAD_BIND is {given.bind}, but MIRBAD_HOSTS is empty: no other machine can open the pages.",
                hint="List the names and addresses that people use for this master.",
                id="mirbad.W001",
            )
        )
    if "*" in given.hosts:
        found.append(
            Doubt(
                "MIRBAD_HOSTS contains '*': any web page could reach this master under a name of its own.",
                hint="List the names and addresses that people use for this master.",
                id="mirbad.W002",
            )
        )
    return found


def _folder(given: Settings) -> list[CheckMessage]:
    folder = given.secrets_dir
    if folder.is_dir() and folder.stat().st_mode & 0o077:
        return [
            Doubt(
                f"Others on this machine can look into {folder}.",
                hint=f"chmod 700 {folder}",
                id="mirbad.W003",
            )
        ]
    return []
