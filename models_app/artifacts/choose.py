"""Which files of a repository a model needs. Pure: names and sizes in, a choice out."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agent.wire.downloads import DownloadFile
from agent.wire.pickles import is_pickle, pickles_in, refusal_words
from mirbad.kernel.errors import InvalidRequest
from models_app.artifacts.errors import ChoiceRequired, PickleRefused

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.[A-Za-z0-9]+$)")
# Weights of other engines, states of training, and pictures: nothing that an engine here reads beside safetensors.
_OTHER_WEIGHTS = (".h5", ".msgpack", ".onnx", ".onnx_data", ".ot", ".tflite", ".mlmodel", ".gguf", ".llamafile", ".npz")
_ASIDE = ("optimizer.", "scheduler.", "trainer_state", "training_args", "rng_state", "scaler.")
_ASIDE_FOLDERS = ("original/", "onnx/", "openvino/", "coreml/", "runs/", "logs/", "checkpoint-", "metal/")
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".mp4", ".mp3", ".wav", ".pdf")


@dataclass(frozen=True, slots=True)
class Choice:
    """What will come and what stays away, both in the order of the repository."""

    files: tuple[DownloadFile, ...]
    left_out: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of what will come."""
        return sum(file.size_bytes for file in self.files)


def choose(
    repository: str, offered: Sequence[DownloadFile], patterns: Sequence[str] = (), *, allow_pickle: bool = False
) -> Choice:
    """The files that match `patterns` (shards follow their first), or without any, those that make the model.

    Raises InvalidRequest (a pattern matches nothing), ChoiceRequired (several GGUF models), PickleRefused.
    """
    visible = [file for file in offered if not any(part.startswith(".") for part in file.path.split("/"))]
    names = [file.path for file in visible]
    wanted = _matching(repository, names, patterns) if patterns else _usual(repository, names)
    if not allow_pickle and (found := pickles_in(name for name in names if name in wanted)):
        raise PickleRefused(refusal_words(f"The set from {repository}", found), fields={"files": list(found)})
    files = tuple(file for file in visible if file.path in wanted)
    return Choice(files, tuple(file.path for file in offered if file.path not in wanted))


def usual(repository: str, offered: Sequence[DownloadFile]) -> tuple[frozenset[str], str]:
    """Names of the files that come when none is named, and why they cannot be taken as they are ("" when they can)."""
    try:
        return frozenset(file.path for file in choose(repository, offered).files), ""
    except (ChoiceRequired, PickleRefused) as refusal:
        return frozenset(), refusal.detail


def folder_for(repository: str) -> str:
    """The folder that a repository is kept in: the same for all that ask for it."""
    return repository.replace("/", "--")[:128]


def shards_of(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """`name` and the other parts of the same split file."""
    found = _SHARD.search(name)
    if found is None:
        return (name,)
    head, tail = name[: found.start()], name[found.end() :]
    pattern = re.compile(rf"{re.escape(head)}-\d{{5}}-of-{found[2]}{re.escape(tail)}")
    return tuple(other for other in names if pattern.fullmatch(other))


def gguf_models(names: Iterable[str]) -> tuple[str, ...]:
    """The first file of each GGUF model; vision parts are no models of their own."""
    found = []
    for name in names:
        shard = _SHARD.search(name)
        first = shard is None or int(shard[1]) == 1
        if name.endswith(".gguf") and first and "mmproj" not in name.rsplit("/", 1)[-1].lower():
            found.append(name)
    return tuple(found)


def _matching(repository: str, names: Sequence[str], patterns: Sequence[str]) -> set[str]:
    wanted: set[str] = set()
    for pattern in patterns:
        found = {name for name in names if name == pattern or fnmatchcase(name, pattern)}
        if not found:
            text = f"Nothing in {repository} matches {pattern!r}."
            raise InvalidRequest(text, problems=[{"code": "no_match", "message": text, "field": "files"}])
        wanted |= {shard for name in found for shard in shards_of(name, names)}
    return wanted


def _usual(repository: str, names: Sequence[str]) -> set[str]:
    safe = [name for name in names if name.endswith(".safetensors") and not _is_aside(name)]
    if safe:
        return _beside_safetensors(names, safe)
    models = gguf_models(names)
    if len(models) > 1:
        shown = ", ".join(models[:6]) + (f" and {len(models) - 6} more" if len(models) > 6 else "")
        text = f"{repository} holds {len(models)} GGUF models ({shown}); choose one by its name."
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
