"""The files that llama.cpp opens, and what a fit counts of the same folder: models, parts, projectors, adapters."""

import struct
from pathlib import Path

import pytest

from agent.common.formats import gguf_names
from agent.common.formats.pickles import is_pickle
from agent.config import AgentConfig
from agent.downloads import gguf, shape
from agent.errors import AgentError
from agent.runtimes import RUNTIMES
from agent.runtimes.base import Allocation
from agent.runtimes.llama_runner import read_options
from agent.runtimes.source import files_of
from agent.wire.capability import Delivery, Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import LaunchSpec, SourceSpec
from models_app.artifacts import selection
from models_app.fit import estimate, of_folder, serve_plan
from tests.agent.engines.conftest import spec

pytestmark = pytest.mark.unit


def header(architecture: str = "llama", kind: str = "") -> bytes:
    """The head of a GGUF file, with a vocabulary that nobody needs to read."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    keys = [text("general.architecture") + struct.pack("<I", 8) + text(architecture)]
    if kind:
        keys.append(text("general.type") + struct.pack("<I", 8) + text(kind))
    keys.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 1) + text("a"))
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys)


PROJECTOR, ADAPTER, MATRIX = header("clip", "mmproj"), header("llama", "adapter"), header("llama", "imatrix")


def folder(root: Path, *names: str, **special: bytes) -> Path:
    made = root / "m"
    for name in (*names, *special):
        file = made / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(PROJECTOR if gguf_names.is_projector(name) else special.get(name, header()))
    return made


def launch(file: str | None = None, projector: str | None = None, **changes: object) -> LaunchSpec:
    source = SourceSpec(folder="m", file=file, projector=projector)
    return spec(**{"runtime": Runtime.LLAMA_CPP, "source": source, "args": ()} | changes)


def opened(root: Path, file: str | None = None, projector: str | None = None) -> tuple[str, str]:
    """Return the model and the projector that the engine is given."""
    config = AgentConfig(models_root=root, state_dir=root / "state", llama_server="/bin/true")
    found = RUNTIMES[Runtime.LLAMA_CPP].prepare(launch(file, projector), config)
    assert found is not None
    base = (root / "m").resolve()
    return found.path.relative_to(base).as_posix(), (
        found.projector.relative_to(base).as_posix() if found.projector else ""
    )


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("m-00001-of-00003.gguf", ("m", 1, 3)),
        ("m-00002-of-00003.gguf", ("m", 2, 3)),
        ("M-00003-OF-00003.GGUF", ("M", 3, 3)),
        ("sub/m-00001-of-00001.Gguf", ("sub/m", 1, 1)),
        ("a-00001-of-00002-00001-of-00002.gguf", ("a-00001-of-00002", 1, 2)),
        ("best-of-breed.gguf", None),
        ("best-of-breed-00001-of-00002-q4.gguf", None),
        ("m-1-of-3.gguf", None),
        ("m-000001-of-000003.gguf", None),
        ("m-00001-of-00003.gguf.bak", None),
        ("m-\u0660\u0660\u0660\u0660\u0661-of-00003.gguf", None),
        ("m-00001-of-00003.safetensors", None),
    ],
)
def test_parts_are_told_by_the_real_pattern(name: str, part: tuple[str, int, int] | None) -> None:
    assert gguf_names.part_of(name) == part
    assert gguf_names.parts_expected(name) == (part[2] if part else 1)


@pytest.mark.parametrize(
    "model", ["best-of-breed.gguf", "the-00001-of-a-kind.gguf", "X-OF-Y.GGUF", "list-of-00002.gguf"]
)
def test_a_name_that_merely_sounds_split_is_one_model(tmp_path: Path, model: str) -> None:
    made = folder(tmp_path, model)
    assert opened(tmp_path) == (model, "")
    assert selection.gguf_models([model]) == (model,)
    assert [one.path for one in shape.read(made, files_of(made)).gguf] == [model]
    assert gguf.describe(made, made / model).parts == 1


SETS = (
    "a-00001-of-00002.gguf", "a-00002-of-00002.gguf",
    "ab-00001-of-00002.gguf", "ab-00002-of-00002.gguf",
    "a-00001-of-00003.gguf", "a-00002-of-00003.gguf", "a-00003-of-00003.gguf",
)  # fmt: skip


def test_two_split_sets_in_a_folder_are_two_and_each_has_its_own_parts(tmp_path: Path) -> None:
    made = folder(tmp_path, *SETS)
    firsts = [name for name in sorted(SETS) if "-00001-" in name]
    assert sorted(selection.gguf_models(SETS)) == firsts
    with pytest.raises(AgentError, match=r"several \.gguf files") as refused:
        opened(tmp_path)
    assert refused.value.code is AgentCode.SPEC_REJECTED
    facts = shape.read(made, files_of(made))
    assert {one.path: one.parts for one in facts.gguf} == {firsts[0]: 2, firsts[1]: 3, firsts[2]: 2}
    for first, parts in ((firsts[0], 2), (firsts[1], 3), (firsts[2], 2)):
        config = AgentConfig(models_root=tmp_path, state_dir=tmp_path, llama_server="/bin/true")
        found = RUNTIMES[Runtime.LLAMA_CPP].prepare(launch(first), config)
        assert found is not None
        assert found.size_bytes == parts * len(header())
        assert len(selection.shards_of(first, SETS)) == parts


@pytest.mark.parametrize(
    ("names", "file", "words"),
    [
        (("a-00001-of-00003.gguf", "a-00003-of-00003.gguf"), None, "has 3 parts, but only 2 exist"),
        (("a-00002-of-00002.gguf",), None, "lacks the first part"),
        (("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"), "a-00002-of-00002.gguf", "Choose its first part"),
        (("mmproj-f16.gguf",), None, "contains no GGUF model"),
        (("a.gguf", "mmproj-f16.gguf"), "mmproj-f16.gguf", "no model"),
        (("a.gguf",), "b.gguf", "does not exist"),
    ],
)
def test_what_is_no_whole_model_is_refused_with_what_to_do(tmp_path: Path, names, file, words) -> None:
    folder(tmp_path, *names)
    with pytest.raises(AgentError, match=words):
        opened(tmp_path, file)


@pytest.mark.parametrize("special", [ADAPTER, MATRIX], ids=["adapter", "imatrix"])
def test_adapters_and_by_products_are_no_models_for_start_and_fit(tmp_path: Path, special: bytes) -> None:
    made = folder(tmp_path, "model.gguf", **{"extra.gguf": special})
    assert opened(tmp_path) == ("model.gguf", "")
    facts = shape.read(made, files_of(made))
    assert of_folder(facts).why("weights") == ""
    with pytest.raises(AgentError, match="adapter"):
        opened(tmp_path, "extra.gguf")
    assert "adapter (LoRA)" in of_folder(shape.read(made, files_of(made), "extra.gguf"), "extra.gguf").why("weights")


def test_a_folder_with_an_adapter_alone_is_refused_for_vllm_and_has_a_reason_in_the_fit(tmp_path: Path) -> None:
    made = tmp_path / "m"
    made.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (made / name).write_bytes(b"{}")
    config = AgentConfig(models_root=tmp_path, state_dir=tmp_path)
    with pytest.raises(AgentError, match=r"adapter \(LoRA\) and no model"):
        RUNTIMES[Runtime.VLLM].prepare(launch(runtime=Runtime.VLLM), config)
    assert "adapter (LoRA) and no model" in of_folder(shape.read(made, files_of(made))).why("weights")


ONE = "gemma-3-4b-it-Q4_K_M.gguf"


@pytest.mark.parametrize(
    ("model", "names", "projector"),
    [
        (ONE, ("mmproj-F16.gguf",), "mmproj-F16.gguf"),
        (ONE, ("gemma-3-4b-it-Q8_0.gguf", "mmproj-model-f16.gguf"), "mmproj-model-f16.gguf"),
        (ONE, ("MMPROJ-gemma-3-4b-it-f16.GGUF",), "MMPROJ-gemma-3-4b-it-f16.GGUF"),
        (ONE, ("mmproj-BF16.gguf", "mmproj-F32.gguf", "mmproj-F16.gguf"), "mmproj-F16.gguf"),
        (ONE, ("mmproj-BF16.gguf", "mmproj-F32.gguf"), "mmproj-BF16.gguf"),
        (f"Q4/{ONE}", ("mmproj-F16.gguf", "other/mmproj-F16.gguf"), "mmproj-F16.gguf"),
        (f"Q4/{ONE}", ("Q4/mmproj-Q8_0.gguf", "mmproj-F16.gguf"), "Q4/mmproj-Q8_0.gguf"),
        ("big-00001-of-00002.gguf", ("big-00002-of-00002.gguf", "big-mmproj-f16.gguf"), "big-mmproj-f16.gguf"),
        # several models in one folder: by the name alone
        (ONE, ("llama-3-8b-Q4_0.gguf", "mmproj-gemma-3-4b-it-f16.gguf"), "mmproj-gemma-3-4b-it-f16.gguf"),
        ("llama-3-8b-Q4_0.gguf", (ONE, "mmproj-gemma-3-4b-it-f16.gguf"), ""),
        ("llama-3-8b-Q4_0.gguf", (ONE, "mmproj-F16.gguf"), ""),
        # two projectors that differ in more than precision
        (ONE, ("mmproj-left-F16.gguf", "mmproj-right-F16.gguf"), ""),
        (ONE, ("other/mmproj-F16.gguf",), ""),
        (ONE, (), ""),
    ],
)
def test_the_projector_of_a_model_is_the_same_for_start_fit_and_download(
    tmp_path: Path, model, names, projector
) -> None:
    made = folder(tmp_path, model, *names)
    assert opened(tmp_path, model) == (model, projector)
    facts = shape.read(made, files_of(made), model)
    found = of_folder(facts, model)
    assert found.projector == projector
    assert found.projector_bytes == (len(PROJECTOR) if projector else None)
    assert selection.projector_of(model, "", (model, *names)) == projector


def test_a_projector_may_be_chosen_or_left_out(tmp_path: Path) -> None:
    made = folder(tmp_path, "a.gguf", "mmproj-left-F16.gguf", "mmproj-right-F16.gguf")
    facts = shape.read(made, files_of(made))
    for choice, used in (("mmproj-right-F16.gguf", "mmproj-right-F16.gguf"), ("none", "")):
        assert opened(tmp_path, None, choice) == ("a.gguf", used)
        assert of_folder(facts, "", choice).projector == used
        assert selection.projector_of("a.gguf", choice, ()) == used
    shown = {one.name: one.value for one in of_folder(facts).inputs}
    assert shown["Projector"].startswith("none: 2 in the folder")
    with pytest.raises(AgentError, match=r"projector 'x\.gguf' does not exist"):
        opened(tmp_path, None, "x.gguf")
    lost = of_folder(facts, "", "x.gguf")
    assert lost.why("projector") == "The folder has no projector x.gguf."
    assert estimate(lost, serve_plan("llama.cpp")).gpu_bytes is None
    for bad in ("../x.gguf", "/etc/passwd"):
        with pytest.raises(AgentError, match="relative path"):
            opened(tmp_path, None, bad)


def test_the_projector_counts_in_the_fit_as_the_engine_loads_it(tmp_path: Path) -> None:
    made = folder(tmp_path, "a.gguf", "mmproj-F16.gguf")
    with (made / "mmproj-F16.gguf").open("r+b") as file:
        file.truncate(500 * 2**20)
    found = of_folder(shape.read(made, files_of(made)))

    def part(*args: str, cards: int = 0) -> int | None:
        need = estimate(found, serve_plan("llama.cpp", args).on(cards))
        return {one.name: one.bytes for one in need.parts}.get("projector")

    assert part() == part(cards=2) == 1000 * 2**20
    assert part("--no-mmproj-offload", cards=1) == 0
    assert part("--no-mmproj") is None
    assert "projector" not in {one.name for one in estimate(found, serve_plan("vllm").on(1)).parts}


@pytest.mark.parametrize("delivery", list(Delivery))
def test_the_engine_is_given_its_projector_and_the_context_of_each_request(tmp_path: Path, delivery: Delivery) -> None:
    folder(tmp_path, "a.gguf", "mmproj-F16.gguf")
    config = AgentConfig(models_root=tmp_path, state_dir=tmp_path, llama_server="/bin/true")
    runtime = RUNTIMES[Runtime.LLAMA_CPP]
    source = runtime.prepare(launch(), config)

    def argv(*args: str, context: int | None = 4096) -> str:
        allocation = Allocation("127.0.0.1", 1, "key", 1, source)
        given = launch(args=args, context_length=context, delivery=delivery, image="x")
        return " ".join(runtime.command(given, config, allocation).argv)

    base = (tmp_path / "m").resolve()
    assert f"--mmproj {base / 'mmproj-F16.gguf'}" in argv()
    assert "--mmproj" not in argv("--no-mmproj").replace("--no-mmproj", "")
    assert "--ctx-size 4096" in argv()
    for args, context in (
        (("--parallel", "4"), 16384),
        (("--parallel=2",), 8192),
        (("-np", "8"), 32768),
        (("-np", "8", "--parallel", "3"), 12288),
        (("-np", "4", "-kvu"), 4096),
        (("-np", "4", "--kv_unified"), 4096),
        (("-np", "4", "-kvu", "--no-kv-unified"), 16384),
        (("-np", "-1"), 4096),
        (("-np", "0"), 4096),
        (("-np", "x"), 4096),
        (("-np",), 4096),
    ):
        assert f"--ctx-size {context} " in argv(*args) + " ", args
        plan = serve_plan("llama.cpp", args, context_length=4096)
        assert (plan.context, plan.context_each) == (context, 4096), "the fit counts what the engine is given"
    assert "--ctx-size" not in argv("-np", "4", context=None)
    stated = serve_plan("llama.cpp", ("-c", "8192", "--parallel", "4"), context_length=4096)
    assert (stated.context, stated.context_each) == (8192, 2048)
    assert {one.name: one.value for one in stated.inputs}["Requests at a time"] == "4, 2048 tokens each"


def test_the_runner_of_the_wheel_knows_the_projector() -> None:
    assert read_options(["--mmproj", "/m/x.gguf"]) == {"mmproj.path": "/m/x.gguf"}


PICKLES = ("bin", "pt", "pth", "ckpt", "pkl", "pickle", "joblib", "npy", "dill", "nemo")


@pytest.mark.parametrize("suffix", PICKLES)
def test_a_pickle_is_one_by_what_a_loader_makes_of_its_name(suffix: str) -> None:
    names = (
        "x.{}", "X.{}", "x#.{}", "x?.{}", "a/x#y.{}", "x.safetensors#.{}", "x.{}#frag", "x.{}?download=true", "x.{}/",
        "x.{} ", "x.{}.", "x.{}.gz", "x.{}.xz", "x.gguf?.{}",
    )  # fmt: skip
    for name in names:
        assert is_pickle(name.format(suffix)), name
        assert is_pickle(name.format(suffix.upper())), name
    for name in (f"x.{suffix}.md", f"{suffix}", f"x{suffix}", f"x.{suffix}x", f"my.{suffix}.safetensors"):
        assert not is_pickle(name), name
