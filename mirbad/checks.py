"""System checks: settings that Django takes but that cannot be what the operator wants."""

import ipaddress
from typing import Any

from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as Doubt

from mirbad.api.addresses import networks
from mirbad.kernel.conf import Settings, settings

_SHORTEST_KEY = 32


@register("mirbad")
def environment(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Checks of the environment's values against each other."""
    return [*_proxies(settings()), *_reach(settings()), *_secrets(settings()), *_folder(settings())]


def _proxies(given: Settings) -> list[CheckMessage]:
    try:
        trusted = networks(given.trusted_proxies)
    except ValueError as error:
        return [Error(f"MIRBAD_TRUSTED_PROXIES: {error}. Give addresses or networks.", id="mirbad.E001")]
    if any(network.prefixlen == 0 for network in trusted):
        return [
            Error(
                "MIRBAD_TRUSTED_PROXIES trusts every address, so anyone could claim to be another client.",
                hint="Name the proxies themselves.",
                id="mirbad.E002",
            )
        ]
    return []


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


def _secrets(given: Settings) -> list[CheckMessage]:
    if given.secret_key and len(given.secret_key) < _SHORTEST_KEY:
        return [
            Error(
                f"MIRBAD_SECRET_KEY has fewer than {_SHORTEST_KEY} characters; sessions and keys at rest hang on it.",
                hint="Unset it, and the master makes one in its data folder.",
                id="mirbad.E003",
            )
        ]
    return []


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
