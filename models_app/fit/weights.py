"""The weight files of a folder: each counted once, whatever other files are beside them."""

from dataclasses import dataclass
from typing import Literal

from agent.common.formats.pickles import is_pickle
from agent.wire.capability import FolderFile
from agent.wire.shape import FolderShape, SafetensorsFile
from mirbad.kernel.sizes import size
from models_app.fit.shape import Input

# A second copy of the same weights in their maker's layout, and by-products of training.
_COPIES = ("consolidated",)
_ASIDE = ("adapter_", "optimizer", "scheduler", "training_args", "rng_state")
_ADAPTER = "adapter_config.json"
_PICKLED = ("pytorch_model", "model", "consolidated")


@dataclass(frozen=True, slots=True)
class Weights:
    """The bytes of the weights. `expert_bytes` and `bytes_by_type` are known where headers were read."""

    format: Literal["safetensors", "pickle", ""] = ""
    total_bytes: int | None = None
    expert_bytes: int | None = None
    bytes_by_type: tuple[tuple[str, int], ...] = ()
    inputs: tuple[Input, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()


def of_folder(facts: FolderShape) -> Weights:
    """Return the weights as engines choose them: the files of the index, else all but copies and by-products."""
    chosen, missing, source = _chosen(facts)
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        return _unknown(f"The index names missing files: {shown}. Download the model again.")
    if chosen:
        return _safetensors(chosen, source)
    pickled = [file for file in facts.files if _is_pickled_weight(file)]
    if pickled:
        total = sum(file.size_bytes for file in pickled)
        inputs = (Input("Weights", _files(len(pickled), total), "sizes of the pickle files"),)
        return Weights("pickle", total, inputs=inputs)
    if facts.truncated:
        return _unknown("The folder has too many files to list, and no weights among the first.")
    if any(file.path == _ADAPTER for file in facts.files):
        return _unknown("The folder holds an adapter (LoRA) and no model; merge it into its model first.")
    return _unknown("The folder has no safetensors and no GGUF file.")


def _unknown(reason: str) -> Weights:
    return Weights(problems=(("weights", reason),))


def _chosen(facts: FolderShape) -> tuple[list[SafetensorsFile], list[str], str]:
    """Return the files that count, those that are missing, and the source of that list."""
    there = {file.path: file for file in facts.safetensors}
    if facts.indexed is not None:
        missing = [name for name in facts.indexed if name not in there]
        return [there[name] for name in facts.indexed if name in there], missing, "model.safetensors.index.json"
    plain = [file for file in facts.safetensors if not file.path.startswith((*_COPIES, *_ASIDE))]
    copies = [file for file in facts.safetensors if file.path.startswith(_COPIES)]
    return plain or copies, [], "safetensors files in the folder"


def _is_pickled_weight(file: FolderFile) -> bool:
    return "/" not in file.path and is_pickle(file.path) and file.path.startswith(_PICKLED)


def _safetensors(chosen: list[SafetensorsFile], source: str) -> Weights:
    unread = [file for file in chosen if file.tensor_bytes is None and file.problem]
    if unread:
        return _unknown(f"{unread[0].path}: {unread[0].problem}")
    total = sum(file.size_bytes if file.tensor_bytes is None else file.tensor_bytes for file in chosen)
    by_type: dict[str, int] = {}
    for file in chosen:
        for kind, held in file.bytes_by_type.items():
            by_type[kind] = by_type.get(kind, 0) + held
    whole = all(file.tensor_bytes is not None for file in chosen)
    inputs = [Input("Weights", _files(len(chosen), total), f"{source}{'' if whole else ', sizes of files'}")]
    if whole and by_type:
        shares = ", ".join(f"{kind} {size(held)}" for kind, held in sorted(by_type.items(), key=lambda item: -item[1]))
        inputs.append(Input("Types of the weights", shares, "headers of the safetensors files"))
    experts = sum(file.expert_bytes or 0 for file in chosen) if whole else None
    kinds = tuple(sorted(by_type.items())) if whole else ()
    return Weights("safetensors", total, experts, kinds, tuple(inputs))


def _files(count: int, total: int) -> str:
    return f"{size(total)} in {count} file{'' if count == 1 else 's'}"
