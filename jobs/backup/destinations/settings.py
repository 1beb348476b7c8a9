"""The settings of destinations, by kind. Passwords and keys are no part of them."""

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from mirbad.kernel.errors import InvalidRequest

_HOST = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45})$")


def _absolute(path: str) -> str:
    if not path.startswith("/") or ".." in PurePosixPath(path).parts or not path.isprintable():
        raise ValueError("Enter an absolute path without '..', like /mnt/backup/mirbad.")
    return path


def _below(path: str) -> str:
    path = path.strip("/")
    if ".." in PurePosixPath(path).parts or not path.isprintable() or "\\" in path:
        raise ValueError("Enter a path below the share, without '..', like backups/mirbad.")
    return path


def _host(name: str) -> str:
    if not _HOST.fullmatch(name):
        raise ValueError("Enter a host name or an IP address, without a port.")
    return name


def _plain(text: str) -> str:
    if not text.isprintable():
        raise ValueError("Remove the control characters.")
    return text


def _endpoint(url: str) -> str:
    """Return an endpoint as scheme, host and port; empty is Amazon's of the region."""
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or not _HOST.fullmatch(parts.hostname):
        raise ValueError("Enter the URL of the S3 server, like https://s3.example.org:9000.")
    if parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("Enter scheme, host and port alone: keys, bucket and folder have fields of their own.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{f':{port}' if port is not None else ''}"


Host = Annotated[str, AfterValidator(_host)]
Below = Annotated[str, Field(max_length=400), AfterValidator(_below)]
Plain = Annotated[str, Field(max_length=200), AfterValidator(_plain)]


class _Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
        str_strip_whitespace=True,
    )


class FolderDestination(_Settings):
    """A folder of the master's machine: another disk, or a share that the system mounts."""

    kind: Literal["folder"] = "folder"
    path: Annotated[str, Field(max_length=400), AfterValidator(_absolute)]

    @property
    def where(self) -> str:
        """Return the place in words."""
        return self.path


class SmbDestination(_Settings):
    """A folder of a Windows or Samba share. The secret is the password of `username`."""

    kind: Literal["smb"] = "smb"
    host: Host
    share: Annotated[str, Field(pattern=r"^[^/\\,\x00-\x1f]{1,80}$")]
    folder: Below = ""
    username: Annotated[Plain, Field(min_length=1)]
    domain: Plain = ""

    @property
    def where(self) -> str:
        """Return the place in words."""
        return f"//{self.host}/{self.share}" + (f"/{self.folder}" if self.folder else "")


class NfsDestination(_Settings):
    """A folder of an NFS export. There is no secret: the server trusts the address of the master."""

    kind: Literal["nfs"] = "nfs"
    host: Host
    export: Annotated[str, Field(max_length=400), AfterValidator(_absolute)]
    folder: Below = ""

    @property
    def where(self) -> str:
        """Return the place in words."""
        return f"{self.host}:{self.export}" + (f" ({self.folder})" if self.folder else "")


class S3Destination(_Settings):
    """A bucket of an S3-compatible server, or of Amazon without an `endpoint`. The secret is the secret access key."""

    kind: Literal["s3"] = "s3"
    endpoint: Annotated[str, Field(max_length=300), AfterValidator(_endpoint)] = ""
    region: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,60}$")] = "us-east-1"
    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    prefix: Below = ""
    access_key_id: Annotated[str, Field(pattern=r"^[!-~]{1,128}$")]

    @property
    def where(self) -> str:
        """Return the place in words."""
        place = f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket
        return f"{place} at {self.endpoint or f'Amazon S3 ({self.region})'}"


DestinationSettings = FolderDestination | SmbDestination | NfsDestination | S3Destination
KINDS: dict[str, type[DestinationSettings]] = {
    "folder": FolderDestination,
    "smb": SmbDestination,
    "nfs": NfsDestination,
    "s3": S3Destination,
}
WITH_SECRET = frozenset({"smb", "s3"})
"""Kinds that need a password or a secret key."""

ADAPTER: TypeAdapter[DestinationSettings] = TypeAdapter(Annotated[DestinationSettings, Field(discriminator="kind")])


_PATTERNS = {
    "share": "Enter the name of the share alone: at most 80 characters, without slashes and commas.",
    "region": "Enter a region like us-east-1: letters, digits and hyphens.",
    "bucket": "Enter a bucket name: 3 to 63 lower-case letters, digits, dots and hyphens.",
    "accessKeyId": "Enter the access key id: at most 128 characters without spaces.",
}
_SENTENCES = {
    "missing": "Enter a value.",
    "string_too_short": "Enter a value.",
    "string_too_long": "Enter a shorter value.",
    "extra_forbidden": "This kind of destination has no such setting. Remove it.",
}


def _sentence(problem: str, text: str, name: str) -> str:
    """Return what to enter, for a problem that pydantic found or one of the rules above."""
    if problem == "string_pattern_mismatch":
        return _PATTERNS.get(name, text)
    return _SENTENCES.get(problem, text.removeprefix("Value error, "))


def parse(kind: str, values: dict[str, Any]) -> DestinationSettings:
    """Return the settings of a destination from a form or a body. Raises InvalidRequest with a problem per field."""
    if kind not in KINDS:
        raise InvalidRequest(f"A destination is one of {', '.join(KINDS)}.")
    try:
        return KINDS[kind].model_validate({**values, "kind": kind})
    except ValidationError as error:
        problems = [
            {
                "code": "destination_setting_invalid",
                "message": _sentence(item["type"], item["msg"], str(item["loc"][0]) if item["loc"] else ""),
                "field": str(item["loc"][0]) if item["loc"] else "settings",
            }
            for item in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        text = f"The settings of the destination are not usable: {problems[0]['field']}: {problems[0]['message']}"
        raise InvalidRequest(text, problems=problems) from None
