"""Requests of a launch: arguments, variables, images, and the resulting command lines."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given as forall
from hypothesis import strategies as st

from agent.config import AgentConfig
from agent.deliveries.images import admitted, parse
from agent.errors import AgentError
from agent.runtimes import RUNTIMES
from agent.runtimes.base import Allocation, WeightsSource
from agent.runtimes.llama_runner import BadOption, read_options
from agent.wire.capability import Delivery, Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import LaunchSpec, SourceSpec
from tests.agent.engines.conftest import spec

pytestmark = pytest.mark.unit

ALLOCATION = Allocation(
    host="127.0.0.1", port=20_001, api_key="the-key", threads=3, source=WeightsSource(Path("/m/x"), (Path("/m"),), 10)
)
DIGEST = "sha256:" + "a" * 64


def vllm(**changes: object) -> LaunchSpec:
    return spec(**{"runtime": Runtime.VLLM, "source": SourceSpec(folder="x"), "args": ()} | changes)


@pytest.fixture
def root(tmp_path: Path) -> AgentConfig:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "model.safetensors").write_bytes(b"12345")
    (tmp_path / "x" / "model.gguf").write_bytes(b"123")
    return AgentConfig(models_root=tmp_path, state_dir=tmp_path / "state")


@pytest.mark.parametrize(
    "argument",
    [
        "--host", "--host=0.0.0.0", "--ho", "--port", "--api-key", "--api_key", "--api-k", "--api_k=x", "--config",
        "--conf", "--served-model-name", "--served", "--ssl-keyfile", "--ssl_keyf", "--chat-template=/etc/passwd",
        "--allowed-local-media-path", "--middleware", "-tp", "-tp=2", "--tensor-parallel-size", "--tensor_par",
        "-n2", "-r1", "--data_parallel_addr",
        "--model", "--uds", "--tokenizer", "--worker-cls", "--kv-transfer-config.kv_role", "--", "--hf-tok",
        "--hf-overrides", "--spec", "-sc", "--generation-config=/etc",
    ],
)  # fmt: skip
def test_vllm_arguments_that_read_files_or_move_the_address_or_key_are_refused(
    root: AgentConfig, argument: str
) -> None:
    with pytest.raises(AgentError) as refused:
        RUNTIMES[Runtime.VLLM].prepare(vllm(args=("--seed", "1", argument, "value")), root)
    assert refused.value.code is AgentCode.SPEC_REJECTED
    assert refused.value.detail.startswith("Launch spec rejected: ")


@pytest.mark.parametrize(
    "args",
    [
        ("--gpu-memory-utilization", "0.8"), ("--max-num-seqs=4",), ("--tokenizer-mode", "auto"), ("--seed", "-1"),
        ("--enable-prefix-caching",), ("--swap-space", "4"), ("--dtype", "float16"), ("--max-model-len", "100"),
        ("--chat-template-content-format", "string"), ("--generation-config", "vllm"),
        ("-O3",), ("--no-trust-remote-code",),
    ],
)  # fmt: skip
def test_other_vllm_arguments_are_passed_on(root: AgentConfig, args: tuple[str, ...]) -> None:
    runtime = RUNTIMES[Runtime.VLLM]
    launch = vllm(args=args)
    assert runtime.prepare(launch, root) is not None
    assert runtime.command(launch, root, ALLOCATION).argv[-len(args) :] == args


def test_vllm_gets_its_folder_names_and_a_shard_for_each_gpu(root: AgentConfig) -> None:
    launch = vllm(gpu_uuids=("GPU-1", "GPU-2"), served_names=("org/a", "b"), context_length=4096)
    process = root.model_copy(update={"vllm_command": "/opt/venv/bin/vllm"})
    command = RUNTIMES[Runtime.VLLM].command(launch, process, ALLOCATION)
    assert command.argv == (
        "/opt/venv/bin/vllm", "serve", "/m/x", "--host", "127.0.0.1", "--port", "20001", "--served-model-name", "org/a",
        "b", "--tensor-parallel-size", "2", "--max-model-len", "4096",
    )  # fmt: skip
    assert command.env["VLLM_API_KEY"] == "the-key"
    assert command.env["HF_HUB_OFFLINE"] == "1"
    assert "the-key" not in " ".join(command.argv)


def test_vllm_in_a_container_names_its_own_entry(root: AgentConfig) -> None:
    command = RUNTIMES[Runtime.VLLM].command(vllm(delivery=Delivery.CONTAINER), root, ALLOCATION)
    assert command.entrypoint == ("vllm", "serve")
    assert command.argv[0] == "/m/x"
    assert "--tensor-parallel-size" not in command.argv


def test_vllm_takes_its_budget_of_each_card_and_not_nine_tenths(root: AgentConfig) -> None:
    allocation = replace(ALLOCATION, card_fraction=0.4166)
    argv = RUNTIMES[Runtime.VLLM].command(vllm(), root, allocation).argv
    assert argv[argv.index("--gpu-memory-utilization") + 1] == "0.417"
    for own in ("--gpu-memory-utilization=0.5", "--gpu_memory_util", "--kv-cache-memory-bytes"):
        argv = RUNTIMES[Runtime.VLLM].command(vllm(args=(own, "0.5")), root, allocation).argv
        assert sum(one.startswith("--gpu") for one in argv) == own.startswith("--gpu")


def test_an_argument_of_the_person_wins_over_the_context_of_the_spec(root: AgentConfig) -> None:
    launch = vllm(args=("--max-model-len=10",), context_length=4096)
    assert RUNTIMES[Runtime.VLLM].command(launch, root, ALLOCATION).argv.count("--max-model-len") == 0


@pytest.mark.parametrize(
    "argument",
    ["--model", "-m", "--api-key", "--api_key_file", "--host", "--lora", "--mmproj", "-hf", "--hf-repo", "--alias",
     "-mu", "-hfr", "-hff", "-mm", "-jf", "--chat-template-file", "--props", "--spec-draft-model", "-hfrv",
     "--log-file", "--rpc", "--ssl-key-file", "--grammar_file"],
)  # fmt: skip
@pytest.mark.parametrize("binary", [None, "/bin/true"])
def test_llama_arguments_that_read_files_or_move_the_address_or_key_are_refused(
    root: AgentConfig, argument: str, binary: str | None
) -> None:
    launch = spec(runtime=Runtime.LLAMA_CPP, source=SourceSpec(folder="x"), args=(argument, "value"))
    with pytest.raises(AgentError) as refused:
        RUNTIMES[Runtime.LLAMA_CPP].prepare(launch, root.model_copy(update={"llama_server": binary}))
    assert refused.value.code is AgentCode.SPEC_REJECTED


def test_an_option_that_the_wheel_does_not_have_is_refused_there_and_passed_to_a_real_llama_server(
    root: AgentConfig,
) -> None:
    launch = spec(runtime=Runtime.LLAMA_CPP, source=SourceSpec(folder="x"), args=("--draft-max", "3"))
    with pytest.raises(AgentError) as refused:
        RUNTIMES[Runtime.LLAMA_CPP].prepare(launch, root)
    assert "--draft-max" in refused.value.detail
    assert "llama_server" in refused.value.detail
    own = root.model_copy(update={"llama_server": "/usr/bin/llama-server"})
    command = RUNTIMES[Runtime.LLAMA_CPP].command(launch, own, ALLOCATION)
    assert command.argv[:3] == ("/usr/bin/llama-server", "--model", "/m/x")
    assert command.argv[-2:] == ("--draft-max", "3")
    assert command.env == {"LLAMA_API_KEY": "the-key"}


def test_threads_are_set_unless_the_person_sets_them(root: AgentConfig) -> None:
    runtime = RUNTIMES[Runtime.LLAMA_CPP]
    launch = spec(runtime=Runtime.LLAMA_CPP, source=SourceSpec(folder="x"), args=())
    argv = runtime.command(launch, root, ALLOCATION).argv
    assert argv[argv.index("--threads") + 1] == "3"
    chosen = launch.model_copy(update={"args": ("-t", "8")})
    assert "--threads" not in runtime.command(chosen, root, ALLOCATION).argv


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        (("-c", "100", "--no_warmup"), {"n_ctx": 100, "warmup": False}),
        (("--embeddings", "--pooling", "mean"), {"embedding": True, "pooling_type": "mean"}),
        (("--temp", "0.5", "--temp", "0.7"), {"sampling.temp": 0.7}),
        (("--flash-attn", "auto"), {"flash_attn_type": "auto"}),
    ],
)
def test_options_of_llama_server_are_read(args: tuple[str, ...], fields: dict[str, object]) -> None:
    assert read_options(args) == fields


@pytest.mark.parametrize("args", [("-c",), ("-c", "many"), ("--pooling", "sum"), ("stray",), ("--nonsense",)])
def test_options_that_cannot_be_read_are_named(args: tuple[str, ...]) -> None:
    with pytest.raises(BadOption) as bad:
        read_options(args)
    assert args[0] in str(bad.value)


def test_links_out_of_a_folder_are_mounted_at_their_own_place_and_counted(tmp_path: Path) -> None:
    outside = tmp_path / "blobs" / "one"
    outside.parent.mkdir()
    outside.write_bytes(b"x" * 1000)
    root = tmp_path / "root"
    (root / "x").mkdir(parents=True)
    (root / "x" / "model.safetensors").symlink_to(outside)
    (root / "x" / "config.json").write_text("{}")
    source = RUNTIMES[Runtime.VLLM].prepare(vllm(), AgentConfig(models_root=root, state_dir=tmp_path))
    assert source is not None
    assert set(source.mounts) == {(root / "x").resolve(), outside.resolve()}
    assert source.size_bytes == 1002


def test_a_split_gguf_is_one_model_and_all_of_its_parts_count(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    for number in (1, 2, 3):
        (folder / f"big-0000{number}-of-00003.gguf").write_bytes(b"x" * 100)
    launch = spec(runtime=Runtime.LLAMA_CPP, source=SourceSpec(folder="x"), args=())
    source = RUNTIMES[Runtime.LLAMA_CPP].prepare(launch, AgentConfig(models_root=tmp_path, state_dir=tmp_path))
    assert source is not None
    assert source.path.name == "big-00001-of-00003.gguf"
    assert source.size_bytes == 300


@pytest.mark.parametrize(
    ("text", "digest", "reference"),
    [
        ("vllm/vllm-openai:v1", None, "vllm/vllm-openai:v1"),
        ("vllm/vllm-openai", None, "vllm/vllm-openai:latest"),
        ("vllm/vllm-openai:v1", DIGEST, f"vllm/vllm-openai@{DIGEST}"),
        (f"localhost:5000/a/b@{DIGEST}", None, f"localhost:5000/a/b@{DIGEST}"),
        ("localhost:5000/a/b", None, "localhost:5000/a/b:latest"),
        ("localhost:5000/a/b:2", None, "localhost:5000/a/b:2"),
    ],
)
def test_images_are_named_by_digest_where_there_is_one(text: str, digest: str | None, reference: str) -> None:
    assert parse(text, digest).reference == reference


def test_an_approved_image_is_the_same_by_all_of_its_names() -> None:
    config = AgentConfig(approved_images=(f"docker.io/library/engine@{DIGEST}",))
    assert admitted(config, "engine:3", DIGEST).digest == DIGEST
    with pytest.raises(AgentError):
        admitted(config, "other/engine", DIGEST)


@forall(st.text(max_size=80), st.none() | st.text(max_size=80))
def test_any_text_as_an_image_is_an_image_or_is_refused(text: str, digest: str | None) -> None:
    code = None
    try:
        assert parse(text, digest).reference
    except AgentError as error:
        code = error.code
    assert code in {None, AgentCode.SPEC_REJECTED}


def test_what_is_not_here_says_why(root: AgentConfig) -> None:
    unset = RUNTIMES[Runtime.VLLM].availability(root, Delivery.PROCESS)
    assert not unset.available
    assert "vllm_command" in (unset.problem or "")
    wrong = root.model_copy(update={"vllm_command": "/no/such/vllm", "llama_server": "/no/such", "sim_engine": False})
    for runtime in Runtime:
        found = RUNTIMES[runtime].availability(wrong, Delivery.PROCESS)
        assert not found.available
        assert found.problem


def _vllm_folder(tmp_path: Path, *names: str) -> tuple[LaunchSpec, AgentConfig]:
    (tmp_path / "w").mkdir()
    for name in names:
        (tmp_path / "w" / name).write_bytes(b"x")
    return vllm(source=SourceSpec(folder="w")), AgentConfig(models_root=tmp_path)


def test_vllm_is_not_started_on_pickles_alone_unless_they_are_allowed(tmp_path: Path) -> None:
    wanted, config = _vllm_folder(tmp_path, "config.json", "pytorch_model.bin")
    with pytest.raises(AgentError) as refused:
        RUNTIMES[Runtime.VLLM].prepare(wanted, config)
    assert refused.value.code is AgentCode.SPEC_REJECTED
    assert "pytorch_model.bin" in refused.value.detail
    assert RUNTIMES[Runtime.VLLM].prepare(wanted.model_copy(update={"allow_pickle": True}), config) is not None


def test_llama_cpp_reads_flags_as_they_are_written_and_keeps_its_own(root: AgentConfig) -> None:
    """It does not take a beginning for a flag: `--chat-template` is not `--chat-template-file`."""
    own = root.model_copy(update={"llama_server": "/bin/true"})
    args = ("--chat-template", "chatml", "--temp", "-1")
    launch = spec(runtime=Runtime.LLAMA_CPP, source=SourceSpec(folder="x"), args=args)
    assert RUNTIMES[Runtime.LLAMA_CPP].prepare(launch, own) is not None


@pytest.mark.parametrize("args", [("--trust-remote-code",), ("--trust_remote_code",), ("--trust_remote_code=true",)])
def test_code_beside_the_weights_runs_only_where_pickles_are_allowed(root: AgentConfig, args: tuple[str, ...]) -> None:
    with pytest.raises(AgentError, match="Python code that comes with the weights"):
        RUNTIMES[Runtime.VLLM].prepare(vllm(args=args), root)
    assert RUNTIMES[Runtime.VLLM].prepare(vllm(args=args, allow_pickle=True), root) is not None


def test_vllm_is_told_to_read_safetensors_and_nothing_else(tmp_path: Path) -> None:
    wanted, config = _vllm_folder(tmp_path, "model.safetensors", "pytorch_model.bin")

    def argv(**changes: object) -> tuple[str, ...]:
        launch = wanted.model_copy(update=changes)
        source = RUNTIMES[Runtime.VLLM].prepare(launch, config)
        return RUNTIMES[Runtime.VLLM].command(launch, config, replace(ALLOCATION, source=source)).argv

    assert argv()[-2:] == ("--load-format", "safetensors")
    assert "--load-format" not in argv(allow_pickle=True)
    assert argv(args=("--load_format=dummy",))[-1] == "--load_format=dummy"
    assert "--load-format" not in argv(args=("--load_format=dummy",))


def test_safetensors_in_a_folder_below_do_not_keep_vllm_from_the_pickle_above(tmp_path: Path) -> None:
    wanted, config = _vllm_folder(tmp_path, "pytorch_model.bin")
    (tmp_path / "w" / "other").mkdir()
    (tmp_path / "w" / "other" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(AgentError, match="pickles"):
        RUNTIMES[Runtime.VLLM].prepare(wanted, config)


@pytest.mark.parametrize("name", ["a.bin", "a.pt", "a.pth", "a.ckpt", "a.pkl", "a.pt2", "A.PT2"])
def test_every_kind_of_pickle_is_refused(tmp_path: Path, name: str) -> None:
    wanted, config = _vllm_folder(tmp_path, "config.json", name)
    with pytest.raises(AgentError, match="pickles"):
        RUNTIMES[Runtime.VLLM].prepare(wanted, config)


@pytest.mark.parametrize(
    "args",
    [("--load-format", "pt"), ("--load_format=npcache",), ("--load-format=dummy", "--load_format=pt")],
)
def test_vllm_is_not_told_to_read_the_pickles_beside_safetensors(tmp_path: Path, args: tuple[str, ...]) -> None:
    wanted, config = _vllm_folder(tmp_path, "model.safetensors", "pytorch_model.bin")
    assert RUNTIMES[Runtime.VLLM].prepare(wanted, config) is not None
    with pytest.raises(AgentError, match="pickles"):
        RUNTIMES[Runtime.VLLM].prepare(wanted.model_copy(update={"args": args}), config)
