"""The GGUF files that llama.cpp opens: the model with all its parts, and the projector beside it."""

import os
from dataclasses import replace
from pathlib import Path

from agent.common.formats import gguf, gguf_names
from agent.common.formats.gguf import BadGguf
from agent.runtimes.base import WeightsSource
from agent.runtimes.flags import rejected
from agent.runtimes.source import describe, files_of, missing, relative
from agent.wire.instances import SourceSpec

_SHOWN = 6


def find(folder: Path, source: SourceSpec) -> WeightsSource:
    """Return the files of the model that `source` names, or of the only one in `folder`.

    AgentError SOURCE_MISSING or SPEC_REJECTED.
    """
    names = [path.relative_to(folder).as_posix() for path in files_of(folder)]
    model = _named(folder, source, source.file) if source.file is not None else _only(folder, source, names)
    parts = gguf_names.parts_of(model, names)
    if len(parts) < gguf_names.parts_expected(model):
        raise missing(
            f"The model '{model}' has {gguf_names.parts_expected(model)} parts, but only {len(parts)} exist in the "
            f"model folder '{source.folder}'. Download the model again."
        )
    projector = _projector(folder, source, model, names)
    opened = [*parts, projector] if projector else parts
    found = describe(folder / model, folder, [folder / name for name in opened])
    return replace(found, projector=Path(os.path.realpath(folder)) / projector) if projector else found


def _named(folder: Path, source: SourceSpec, file: str) -> str:
    name = relative(file, "model file").as_posix()
    if not (folder / name).is_file():
        raise missing(f"The file '{file}' does not exist in the model folder '{source.folder}'.")
    part = gguf_names.part_of(name)
    if part is not None and part.number != 1:
        raise rejected(f"'{file}' is part {part.number} of {part.total} of a model. Choose its first part.")
    if gguf_names.is_projector(name) or not _is_model(folder / name):
        raise rejected(
            f"'{file}' is an adapter (LoRA), a projector or a by-product, and no model. Choose the model's own file; "
            "merge an adapter into the model first."
        )
    return name


def _only(folder: Path, source: SourceSpec, names: list[str]) -> str:
    candidates = [name for name in names if gguf_names.is_first(name) and not gguf_names.is_projector(name)]
    models = [name for name in candidates if _is_model(folder / name)]
    if not models:
        if any(gguf_names.part_of(name) for name in names):
            raise missing(f"The model folder '{source.folder}' lacks the first part of its GGUF. Download it again.")
        raise missing(f"The model folder '{source.folder}' contains no GGUF model (.gguf).")
    if len(models) > 1:
        shown = ", ".join(models[:_SHOWN])
        raise rejected(f"the model folder '{source.folder}' contains several .gguf files ({shown}). Choose one.")
    return models[0]


def _projector(folder: Path, source: SourceSpec, model: str, names: list[str]) -> str:
    if source.projector == gguf_names.NO_PROJECTOR:
        return ""
    if source.projector is None:
        return gguf_names.projector_for(model, names)
    name = relative(source.projector, "projector").as_posix()
    if not (folder / name).is_file():
        raise missing(f"The projector '{name}' does not exist in the model folder '{source.folder}'.")
    return name


def _is_model(path: Path) -> bool:
    """Return whether the header is that of a model; an unreadable file is left to the engine."""
    try:
        with path.open("rb") as file:
            return gguf_names.is_model(gguf.general(file))
    except (BadGguf, OSError):
        return True
