"""An S3 bucket as a destination.

`boto3` and no smaller client: it is the one that every S3-compatible server is tested with, it streams large files in
parts, and its retries and checksums are kept up to date. It is loaded by the process of a destination alone.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs.backup.destinations.base import PART, PIECE_BYTES, damaged, other_content, sha256_of
from jobs.backup.destinations.settings import S3Destination
from jobs.errors import BackupDestinationFailed

_ABSENT = {"404", "NoSuchKey", "NotFound"}
_ADVICE = {
    "InvalidAccessKeyId": "Check the access key.",
    "SignatureDoesNotMatch": "Check the secret key.",
    "AccessDenied": "Give the key the rights to read, write, list and delete objects of the bucket.",
    "403": "Give the key the rights to read, write, list and delete objects of the bucket.",
    "NoSuchBucket": "Create the bucket, or correct its name.",
    "PermanentRedirect": "Correct endpoint and region: the bucket is elsewhere.",
    "301": "Correct endpoint and region: the bucket is elsewhere.",
    "307": "Correct endpoint and region: the bucket is elsewhere.",
}


class BucketStore:
    """A bucket, and the prefix of its keys. An object appears whole, under a name of its own until it was read back."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, prefix

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def put(self, file: Path, name: str, sha256: str) -> None:
        """Upload a file."""
        self._remove_parts(name)
        if (found := self.digest(name)) is not None:
            if found != sha256:
                raise other_content(name)
            return
        part = f".{name}{PART}{secrets.token_hex(4)}"
        try:
            self._client.upload_file(str(file), self._bucket, self._key(part))
            if self.digest(part) != sha256:
                raise damaged(name)
            source = {"Bucket": self._bucket, "Key": self._key(part)}
            self._client.copy(source, self._bucket, self._key(name))
            if self.digest(name) != sha256:
                self._delete(name)
                raise damaged(name)
        finally:
            self._delete(part)

    def remove(self, name: str) -> None:
        """Delete an object and what is left of interrupted uploads."""
        self._delete(name)
        self._remove_parts(name)

    def digest(self, name: str) -> str | None:
        """Return the digest of an object, read back from the server."""
        from botocore.exceptions import ClientError

        try:
            body = self._client.get_object(Bucket=self._bucket, Key=self._key(name))["Body"]
        except ClientError as error:
            if _code(error) in _ABSENT:
                return None
            raise
        return sha256_of(iter(lambda: body.read(PIECE_BYTES), b""))

    def _delete(self, name: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=self._key(name))

    def _remove_parts(self, name: str) -> None:
        begin = self._key(f".{name}{PART}")
        found = self._client.list_objects_v2(Bucket=self._bucket, Prefix=begin).get("Contents", [])
        for one in found:
            self._client.delete_object(Bucket=self._bucket, Key=one["Key"])


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def opened(settings: S3Destination, secret: str) -> Iterator[BucketStore]:
    """Open a bucket. What the server or the network refuses becomes BackupDestinationFailed with what to do."""
    import boto3
    from boto3.exceptions import Boto3Error
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    config = Config(
        signature_version="s3v4",
        connect_timeout=10,
        read_timeout=60,
        retries={"max_attempts": 3, "mode": "standard"},
        s3={"addressing_style": "path" if settings.endpoint else "auto"},
        # Many compatible servers do not know the newer checksums; every object is read back anyway.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        client = boto3.session.Session().client(
            "s3",
            region_name=settings.region,
            endpoint_url=settings.endpoint or None,
            aws_access_key_id=settings.access_key_id,
            aws_secret_access_key=secret,
            config=config,
        )
        yield BucketStore(client, settings.bucket, settings.prefix)
    except ClientError as error:
        code = _code(error)
        advice = _ADVICE.get(code, "Read what the server says.")
        text = f"The S3 server refuses: {error.response.get('Error', {}).get('Message') or code} ({code}). {advice}"
        raise BackupDestinationFailed(text) from None
    except (BotoCoreError, Boto3Error) as error:
        text = f"{settings.where} cannot be used: {' '.join(str(error).split())[:300]}. Check endpoint and network."
        raise BackupDestinationFailed(text) from None
