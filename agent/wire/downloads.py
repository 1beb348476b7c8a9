"""Downloads of models to a node, and the folders of a node."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, SecretStr, field_serializer

from agent.wire.base import WireModel
from agent.wire.capability import ModelFolder

FileDigest = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40})$")]
"""``sha256:`` of the content, or ``git-sha1:`` of Git's blob, which a hub states for small files."""


class DownloadState(StrEnum):
    """The progress of a download. `READY`, `FAILED` and `CANCELLED` are final."""

    WAITING = "waiting"
    CHECKING = "checking"
    DOWNLOADING = "downloading"
    PLACING = "placing"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL_STATES = frozenset({DownloadState.READY, DownloadState.FAILED, DownloadState.CANCELLED})


class DownloadFile(WireModel):
    """One file of a download: path in repository and folder, exact size, and expected digest."""

    path: str = Field(min_length=1, max_length=512)
    size_bytes: Annotated[int, Field(ge=0, le=2**62)]
    digest: FileDigest


class DownloadSpec(WireModel):
    """``PUT /agent/v1/downloads/{downloadId}``: these files of one commit in a folder of the models root.

    `endpoint` is the hub, unless the node's environment sets another (``HF_ENDPOINT``).
    """

    folder: str = Field(min_length=1, max_length=255)
    repository: str = Field(pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?$", max_length=255)
    commit: str = Field(pattern=r"^[0-9a-f]{40,64}$")
    files: Annotated[tuple[DownloadFile, ...], Field(min_length=1, max_length=5000)]
    endpoint: str | None = Field(default=None, max_length=512)
    allow_pickle: bool = False

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)


class DownloadView(WireModel):
    """The state of a download at the agent. `reason` is a sentence; `bytes_per_second` is of the last seconds.

    `waits_until` is the time to which a server asked it to wait; None while it does not wait for one.
    """

    download_id: str
    folder: str
    repository: str
    commit: str
    state: DownloadState
    reason: str | None = None
    reason_code: str | None = None
    text: str = ""
    files_done: int = 0
    files_total: int
    done_bytes: int = 0
    total_bytes: int
    bytes_per_second: float | None = None
    waits_until: str | None = None
    started_at: str
    finished_at: str | None = None


class DownloadList(WireModel):
    """``GET /agent/v1/downloads``: downloads in progress and recently ended, newest first."""

    downloads: tuple[DownloadView, ...]


class TokenInput(WireModel):
    """``PUT /agent/v1/downloads/{downloadId}/token``: a hub token for this download, kept in memory only.

    `nonce` is random: the journal stores a digest of each body, and the nonce keeps that digest from revealing the
    token.
    """

    token: SecretStr
    nonce: str = Field(min_length=16, max_length=64)

    @field_serializer("token", when_used="json")
    def _reveal(self, value: SecretStr) -> str:
        return value.get_secret_value()


class TokenStored(WireModel):
    """The token is in memory until the download or the agent ends."""

    download_id: str


class DownloadForgotten(WireModel):
    """``DELETE /agent/v1/downloads/{downloadId}``: its record and its unfinished bytes are deleted."""

    download_id: str


class FolderList(WireModel):
    """``GET /agent/v1/folders``: the current model folders. Disk sizes are of the models root; None is unknown.

    `problem` says why the models root itself cannot be looked at, or is not the one that was there before;
    `problem_code` is its code.
    """

    folders: tuple[ModelFolder, ...]
    free_bytes: int | None = None
    total_bytes: int | None = None
    problem: str | None = None
    problem_code: str | None = None


class FolderRemoved(WireModel):
    """``DELETE /agent/v1/folders/{folder}``: `freed_bytes` were listed before the deletion and are not afterwards."""

    folder: str
    freed_bytes: int
    remaining_bytes: int = 0
    folders: FolderList


class GgufFile(WireModel):
    """One GGUF model in a folder: its first file, all its parts, and facts of its header. None is unknown."""

    path: str
    parts: int
    size_bytes: int
    architecture: str | None = None
    name: str | None = None
    quantization: str | None = None
    context_length: int | None = None
    parameters: int | None = None
    problem: str | None = None


class GgufList(WireModel):
    """``GET /agent/v1/folders/{folder}/gguf``."""

    folder: str
    files: tuple[GgufFile, ...]
