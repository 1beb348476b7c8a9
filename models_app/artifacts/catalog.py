"""A small catalog of public models that are known to run here, and its state on one node.

Sizes are of the downloaded files, as their makers published them; a download reads the exact sizes from the hub.
"""

from dataclasses import dataclass

from agent.wire.capability import Capabilities, Delivery, Runtime
from models_app.artifacts.selection import folder_for
from nodes import queries
from nodes.models import Node

_APACHE, _MIT = "apache-2.0", "mit"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model. `files` are patterns (none: the default selection); a `gated` one needs a token."""

    id: str
    name: str
    repository: str
    runtime: Runtime
    size_bytes: int
    license: str
    files: tuple[str, ...] = ()
    revision: str = ""
    gated: bool = False
    about: str = ""

    @property
    def folder(self) -> str:
        """Return the folder of the model on a node."""
        return folder_for(self.repository)

    @property
    def file(self) -> str:
        """Return the GGUF file that an engine opens; empty for a folder of safetensors."""
        return self.files[0] if self.runtime is Runtime.LLAMA_CPP else ""


def _gguf(key: str, name: str, repository: str, file: str, size: int, about: str) -> CatalogEntry:
    return CatalogEntry(key, name, repository, Runtime.LLAMA_CPP, size, _APACHE, files=(file,), about=about)


CATALOG: tuple[CatalogEntry, ...] = (
    _gguf("qwen2.5-0.5b-instruct-gguf", "Qwen2.5 0.5B Instruct (Q4_K_M)", "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
          "qwen2.5-0.5b-instruct-q4_k_m.gguf", 491_400_032, "Small and fast on any machine."),
    _gguf("qwen2.5-1.5b-instruct-gguf", "Qwen2.5 1.5B Instruct (Q4_K_M)", "Qwen/Qwen2.5-1.5B-Instruct-GGUF",
          "qwen2.5-1.5b-instruct-q4_k_m.gguf", 1_117_320_736, "Good answers on a few CPU cores."),
    _gguf("smollm2-1.7b-instruct-gguf", "SmolLM2 1.7B Instruct (Q4_K_M)", "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
          "smollm2-1.7b-instruct-q4_k_m.gguf", 1_055_609_536, "English only, for small machines."),
    CatalogEntry("smollm2-135m-instruct", "SmolLM2 135M Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", Runtime.VLLM,
                 269_060_552, _APACHE, about="For first tests."),
    CatalogEntry("qwen2.5-0.5b-instruct", "Qwen2.5 0.5B Instruct", "Qwen/Qwen2.5-0.5B-Instruct", Runtime.VLLM,
                 988_097_824, _APACHE, about="Fits next to any other model."),
    CatalogEntry("qwen3-0.6b", "Qwen3 0.6B", "Qwen/Qwen3-0.6B", Runtime.VLLM, 1_503_300_328, _APACHE,
                 about="Optional reasoning before the answer."),
    CatalogEntry("qwen2.5-7b-instruct", "Qwen2.5 7B Instruct", "Qwen/Qwen2.5-7B-Instruct", Runtime.VLLM,
                 15_231_271_888, _APACHE, about="For a 24 GB GPU."),
    CatalogEntry("qwen3-8b", "Qwen3 8B", "Qwen/Qwen3-8B", Runtime.VLLM, 16_381_517_208, _APACHE,
                 about="For a 24 GB GPU."),
    CatalogEntry("phi-3.5-mini-instruct", "Phi 3.5 mini Instruct", "microsoft/Phi-3.5-mini-instruct", Runtime.VLLM,
                 7_642_181_896, _MIT, about="3.8 billion parameters, long context."),
    CatalogEntry("mistral-7b-instruct-v0.3", "Mistral 7B Instruct v0.3", "mistralai/Mistral-7B-Instruct-v0.3",
                 Runtime.VLLM, 14_496_078_512, _APACHE, about="For a 24 GB GPU."),
    CatalogEntry("llama-3.1-8b-instruct", "Llama 3.1 8B Instruct", "meta-llama/Llama-3.1-8B-Instruct", Runtime.VLLM,
                 16_060_556_376, "llama3.1", gated=True, about="Accept its terms on Hugging Face first."),
    CatalogEntry("gemma-2-2b-it", "Gemma 2 2B it", "google/gemma-2-2b-it", Runtime.VLLM, 5_228_717_512, "gemma",
                 gated=True, about="Accept its terms on Hugging Face first."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Offer:
    """An entry with its state on one node, by the node's last report. None is not reported."""

    entry: CatalogEntry
    present: bool | None
    delivery: str | None
    problem: str


def find(entry_id: str) -> CatalogEntry | None:
    """Return the entry with that id, None without one."""
    return next((entry for entry in CATALOG if entry.id == entry_id), None)


def offers(node: Node) -> tuple[Offer, ...]:
    """Return every entry with its state on `node`, by the last report; the node is not called."""
    known = queries.capabilities(node)
    return tuple(_offer(entry, known) for entry in CATALOG)


def _offer(entry: CatalogEntry, known: Capabilities | None) -> Offer:
    if known is None:
        return Offer(entry, None, None, "The node has not reported its runtimes yet.")
    folder = next((folder for folder in known.folders if folder.name == entry.folder), None)
    present = folder is not None and not folder.missing
    if folder is not None and entry.file and not folder.truncated:
        present = present and any(file.path == entry.file for file in folder.files)
    ways = [way for way in known.runtimes if way.runtime == entry.runtime]
    # A process needs no image, so it is preferred where both work.
    able = sorted((way for way in ways if way.available), key=lambda way: way.delivery != Delivery.PROCESS)
    if able:
        return Offer(entry, present, able[0].delivery.value, "")
    reason = next((way.problem for way in ways if way.problem), None)
    return Offer(entry, present, None, reason or f"The node does not offer {entry.runtime}.")
