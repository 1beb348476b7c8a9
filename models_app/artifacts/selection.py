"""The files of a repository that a model needs. Pure: names and sizes in, a selection out."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agent.common.formats import gguf_names
from agent.common.formats.pickles import is_pickle, pickles_in, refusal_words
from agent.wire.downloads import DownloadFile
from mirbad.kernel.errors import InvalidRequest
from models_app.artifacts.errors import ChoiceRequired, PickleRefused

_SHARD = re.compile(r"-([0-9]{5})-of-([0-9]{5})(?=\.[A-Za-z0-9]+$)")
# Weights of other engines, training states and pictures: no engine here reads them beside safetensors.
_OTHER_WEIGHTS = (".h5", ".msgpack", ".onnx", ".onnx_data", ".ot", ".tflite", ".mlmodel", ".gguf", ".llamafile", ".npz")
_ASIDE = ("optimizer.", "scheduler.", "trainer_state", "training_args", "rng_state", "scaler.")
_ASIDE_FOLDERS = ("original/", "onnx/", "openvino/", "coreml/", "runs/", "logs/", "checkpoint-", "metal/")
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".mp4", ".mp3", ".wav", ".pdf")


@dataclass(frozen=True, slots=True)
class FileSelection:
    """The files to download and those left out, both in the order of the repository."""

    files: tuple[DownloadFile, ...]
    left_out: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Return the bytes to download."""
        return sum(file.size_bytes for file in self.files)


def select(
    repository: str, offered: Sequence[DownloadFile], patterns: Sequence[str] = (), *, allow_pickle: bool = False
) -> FileSelection:
    """Select the files that match `patterns` (with all parts of a split file), or the default selection without any.

    Raises InvalidRequest (a pattern matches nothing), ChoiceRequired (several GGUF models), PickleRefused.
    """
    visible = [file for file in offered if not any(part.startswith(".") for part in file.path.split("/"))]
    names = [file.path for file in visible]
    selected = _matching(repository, names, patterns) if patterns else _default_names(repository, names)
    if not allow_pickle and (found := pickles_in(name for name in names if name in selected)):
        raise PickleRefused(refusal_words(f"The selection from {repository}", found), fields={"files": list(found)})
    files = tuple(file for file in visible if file.path in selected)
    return FileSelection(files, tuple(file.path for file in offered if file.path not in selected))


def default_files(repository: str, offered: Sequence[DownloadFile]) -> tuple[frozenset[str], str]:
    """Return the names of the default selection, and the reason for which there is none ("" otherwise)."""
    try:
        return frozenset(file.path for file in select(repository, offered).files), ""
    except (ChoiceRequired, PickleRefused) as refusal:
        return frozenset(), refusal.detail


def folder_for(repository: str) -> str:
    """Return the folder of a repository: the same for every request."""
    return repository.replace("/", "--")[:128]


def shards_of(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return `name` and the other parts of the same split file."""
    if gguf_names.is_gguf(name):
        return gguf_names.parts_of(name, names)
    found = _SHARD.search(name)
    if found is None:
        return (name,)
    head, tail = name[: found.start()], name[found.end() :]
    pattern = re.compile(rf"{re.escape(head)}-[0-9]{{5}}-of-{found[2]}{re.escape(tail)}")
    return tuple(other for other in names if pattern.fullmatch(other))


def gguf_models(names: Iterable[str]) -> tuple[str, ...]:
    """Return the first file of each GGUF model; projectors are no models of their own."""
    return tuple(name for name in names if gguf_names.is_first(name) and not gguf_names.is_projector(name))


def _matching(repository: str, names: Sequence[str], patterns: Sequence[str]) -> set[str]:
    selected: set[str] = set()
    for pattern in patterns:
        found = {name for name in names if name == pattern or fnmatchcase(name, pattern)}
        if not found:
            text = f"No file in {repository} matches {pattern!r}."
            raise InvalidRequest(text, problems=[{"code": "no_match", "message": text, "field": "files"}])
        selected |= {shard for name in found for shard in shards_of(name, names)}
    return selected


def projector_of(file: str, choice: str, offered: Iterable[str]) -> str:
    """Return the projector that the GGUF `file` of a repository runs with; empty for none.

    `choice` is the model's: a file, "none", or empty for the one that belongs to it by the names.
    """
    if choice == gguf_names.NO_PROJECTOR or not gguf_names.is_gguf(file):
        return ""
    return choice or gguf_names.projector_for(file, offered)


def _default_names(repository: str, names: Sequence[str]) -> set[str]:
    safe = [name for name in names if name.endswith(".safetensors") and not _is_aside(name)]
    if safe:
        return _beside_safetensors(names, safe)
    models = gguf_models(names)
    if len(models) > 1:
        shown = ", ".join(models[:6]) + (f" and {len(models) - 6} more" if len(models) > 6 else "")
        text = f"{repository} holds {len(models)} GGUF models ({shown}); name the file of one."
        raise ChoiceRequired(text, fields={"files": list(models)})
    return {name for name in names if not _is_aside(name) and not name.lower().endswith(_PICTURES)}


def _beside_safetensors(names: Sequence[str], safe: Sequence[str]) -> set[str]:
    # "consolidated" is the same weights once more, in the maker's own layout, where sharded or plain ones stand.
    plain = [name for name in safe if not name.rsplit("/", 1)[-1].startswith("consolidated")]
    keep = set(plain or safe)
    for name in names:
        lower = name.lower()
        other = name.endswith(".safetensors") or is_pickle(name) or lower.endswith(_OTHER_WEIGHTS + _PICTURES)
        if not other and not _is_aside(name):
            keep.add(name)
    return keep


def _is_aside(name: str) -> bool:
    return name.startswith(_ASIDE_FOLDERS) or name.rsplit("/", 1)[-1].startswith(_ASIDE)
