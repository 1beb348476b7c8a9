"""One list of settings that a model may have, for the master when it is saved and for the agent at every start."""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from agent.common.engine_flags import runs_code
from agent.common.engine_settings import ENGINES
from agent.common.engine_settings.check import Allowed, refused_args, refused_env
from agent.common.engine_settings.rules import Rule
from agent.config import AgentConfig, BadAgentConfig, read_config
from agent.errors import AgentError
from agent.runtimes.flags import check_settings
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import LaunchSpec
from mirbad.kernel.errors import InvalidRequest
from models_app.registry.inputs import parse
from tests.inputs import inputs

pytestmark = pytest.mark.unit

MODELS: dict[str, dict[str, Any]] = {
    "vllm": {"id": "m", "runtime": "vllm", "delivery": "container", "sources": [{"folder": "w"}]},
    "llama.cpp": {
        "id": "m",
        "runtime": "llama.cpp",
        "delivery": "process",
        "sources": [{"folder": "w", "file": "a.gguf"}],
    },
    "sim": {"id": "m", "runtime": "sim", "delivery": "process"},
}
_LISTS = dict(
    part.split("]", 1) for part in Path(__file__).with_name("engine_options.txt").read_text().split("\n[")[1:]
)
VARIABLES = _LISTS.pop("variables").split()
OPTIONS = {runtime: text.split() for runtime, text in _LISTS.items()}
ATTACKS = (
    *("/etc/passwd", "./x", "../x", "..", "a/b", "~/x", "a.b", "os.system", "a.b:C", "http://h/x", "//h/x", "file:x"),
    *(
        "$(id)",
        "`id`",
        "a b",
        "a\nb",
        "a\0b",
        "-x",
        "--host",
        "@file",
        "%s",
        "x;y z",
        "\u2215etc",
        "\uff0e\uff0e/x",
        "C:\\x",
    ),
    *('{"model": "/x"}', '{"a": "/x"}', '{"a": ["/x"]}', '{"a": {"b": "x.y"}}', '{"__class__": "x"}', '["/x"]'),
    *('{"backend": "a.b"}', '{"level": 1, "level": "/x"}', '{"cache_dir": "/x"}', '{"a/b": 1}', "{", "[]", "", " "),
)
GOOD = (
    *("1", "3", "0.5", "auto", "on", "none", "word", "1,2", "eth0", "INFO", "IB", "spawn", "PCI_BUS_ID", "LAZY", "mp"),
    *(
        "native",
        "ngram",
        "vllm",
        "a:1",
        "Europe/Paris",
        "C.UTF-8",
        "0-3",
        "x=int:1",
        "x=CPU",
        "1+2",
        "{}",
        "TOKEN",
        "0",
    ),
)


def agent_refuses(runtime: str, args: list[str], env: dict[str, str], config: AgentConfig | None = None) -> bool:
    spec = LaunchSpec(
        model_id="m", generation=1, config_hash="h", runtime=Runtime(runtime), delivery=Delivery.PROCESS,
        served_names=("m",), args=tuple(args), env=env,
    )  # fmt: skip
    secret = spec.model_copy(update={"env": {}, "secret_env": {name: SecretStr(value) for name, value in env.items()}})
    found = set()
    for one in (spec, secret):
        try:
            check_settings(one, config or AgentConfig())
            found.add(False)
        except AgentError:
            found.add(True)
    assert len(found) == 1, "a secret variable is judged as a plain one"
    return found.pop()


def master_refuses(runtime: str, args: list[str], env: dict[str, str]) -> bool:
    try:
        parse({**MODELS[runtime], "args": args, "env": env})
    except InvalidRequest as error:
        return all(problem["field"].startswith(("args.", "env.")) for problem in error.problems)
    return False


def spellings(option: str) -> Iterator[str]:
    """Spellings that an engine may read as `option`."""
    yield from (option, option.upper(), f"{option}=x", f"{option}=/x", f"{option}.member", f"{option}.model=/x")
    yield from (f"{option}+", f"{option}.a+=/x", f" {option}", f"{option} ", f"{option}\t/x", f"{option}2")
    if option.startswith("--"):
        yield from ("-" + option[1:].replace("-", "_"), option.replace("-", "_").replace("__", "--", 1), option[1:])
        yield from (option[:end] for end in range(4, len(option)))
        yield option.replace("--", "--no-", 1)


def tried(runtime: str) -> set[str]:
    return {spelled for option in OPTIONS[runtime] for spelled in spellings(option)}


def as_listed(runtime: str, spelled: str) -> bool:
    """Return whether the list itself has `spelled`: an abbreviation may be another option's full name."""
    engine = ENGINES[runtime]
    name = spelled.replace("_", "-") if spelled.startswith("--") else spelled
    positive = "--" + name.removeprefix("--no-")
    return name in engine.arguments or re.fullmatch(r"-O[0-3]", name) is not None or positive in engine.arguments


@pytest.mark.parametrize("runtime", Runtime)
def test_an_option_that_is_not_listed_is_refused_in_each_spelling(runtime: Runtime) -> None:
    names = inputs({name for name in tried(runtime) if not as_listed(runtime, name)})
    assert len(names) > {"vllm": 2000, "llama.cpp": 2000, "sim": 150}[runtime]
    for value in ([], ["/etc/passwd"]):
        assert {name for name in names if not refused_args(runtime, [name, *value])} == set()
    some = sorted(names)[::17]
    assert [name for name in some if not agent_refuses(runtime, ["--seed", "1", name], {})] == []
    assert [name for name in some if not master_refuses(runtime, [name], {})] == []


@pytest.mark.parametrize("runtime", Runtime)
def test_a_variable_that_is_not_listed_is_refused(runtime: Runtime) -> None:
    engine = ENGINES[runtime]
    spelled = {s for name in VARIABLES for s in (name, name.lower(), name.title(), f"{name}_", f"_{name}", f"{name}2")}
    spelled |= {f"LLAMA_ARG_{name}" for name in VARIABLES}
    assert len(spelled) > 2000
    assert not [name for name in VARIABLES if name in engine.variables]
    open_name = engine.open_variables[0] if engine.open_variables else None
    names = {n for n in spelled if n not in engine.variables and not (open_name and open_name.fits(n) and n in spelled)}
    inputs(names)
    assert {n for n in names if not refused_env(runtime, {n: "1"})} == set()
    assert refused_env(runtime, {next(iter(engine.managed_variables)): "1"})[0].code == "env_name_reserved"
    some = sorted(names)[::31]
    assert [name for name in some if not agent_refuses(runtime, [], {name: "1"})] == []
    assert [name for name in some if not master_refuses(runtime, [], {name: "1"})] == []


def names_a_path(value: str) -> bool:
    return "/" in value or "\\" in value or "\0" in value or re.search(r"[A-Za-z_]\.[A-Za-z_]", value) is not None


@pytest.mark.parametrize("runtime", Runtime)
def test_a_listed_option_takes_no_path_no_dotted_name_and_no_option_for_its_value(runtime: Runtime) -> None:
    texts = {"--chat-template", "--reasoning-budget-message", "--grammar", "--dry-sequence-breaker", "--die-at-start"}
    assert ENGINES[runtime].arguments
    for name, rule in ENGINES[runtime].arguments.items():
        accepted = {value for value in inputs(ATTACKS) if not refused_args(runtime, [name, value])}
        if runtime != Runtime.LLAMA_CPP:
            accepted |= {value for value in inputs(ATTACKS) if not refused_args(runtime, [f"{name}={value}"])}
        if name in texts:
            assert not {value for value in accepted if value.startswith(("-", "@")) or "\0" in value}, name
            continue
        assert not {value for value in accepted if names_a_path(value) or value.startswith("-")}, name
        assert [value for value in GOOD if accepts(runtime, name, rule, value)] or not rule.takes_value, name


def accepts(runtime: str, name: str, rule: Rule, value: str) -> bool:
    return rule.takes_value and not refused_args(runtime, [name, value])


@pytest.mark.parametrize("runtime", Runtime)
def test_a_listed_variable_takes_no_path_for_its_value(runtime: Runtime) -> None:
    assert ENGINES[runtime].variables
    for name in ENGINES[runtime].variables:
        accepted = {value for value in inputs(ATTACKS) if not refused_env(runtime, {name: value})}
        assert not {
            v for v in accepted if v.startswith(("/", ".", "~", "-")) or "://" in v or "\0" in v or "\n" in v
        }, name
        assert name == "TZ" or not {value for value in accepted if "/" in value}, name
        assert [value for value in GOOD if not refused_env(runtime, {name: value})], name


@pytest.mark.parametrize("runtime", Runtime)
def test_the_agent_and_the_master_allow_what_is_listed(runtime: Runtime) -> None:
    engine = ENGINES[runtime]
    args: list[str] = []
    for name, rule in inputs(engine.arguments.items()):
        if name != "--trust-remote-code":
            args += [name] if not rule.takes_value else [name, next(v for v in GOOD if rule.fits(v))]
        if len(args) < 250:
            saved = list(args)
    env = {name: next(v for v in GOOD if rule.fits(v)) for name, rule in inputs(engine.variables.items())}
    assert refused_args(runtime, args) == ()
    assert not agent_refuses(runtime, args, env)
    assert not master_refuses(runtime, saved, dict(list(env.items())[:100]))


def vllm_parser() -> argparse.ArgumentParser:
    """The options of vLLM, as its own parser reads them: a prefix will do."""
    parser = argparse.ArgumentParser()
    listed = ENGINES["vllm"].arguments
    for name in dict.fromkeys((*listed, *(option for option in OPTIONS["vllm"] if option != "--help"))):
        rule = listed.get(name)
        if rule is not None and not rule.takes_value:
            parser.add_argument(name, dest=name, action="store_true")
        else:
            parser.add_argument(name, dest=name, nargs="+" if rule is not None and rule.several else None)
    return parser


def test_a_parser_that_takes_prefixes_never_sets_an_option_that_is_not_listed() -> None:
    parser, listed = vllm_parser(), ENGINES["vllm"].arguments
    dangerous = set(OPTIONS["vllm"]) - {"--help"}
    count = 0
    for spelled in tried("vllm") | set(listed):
        ways = ([spelled], [spelled, "1"], [spelled, "word"], ["--seed", "1", spelled, "mp"], [spelled, "{}"])
        for args in inputs(ways):
            if refused_args("vllm", args):
                continue
            count += 1
            known, _ = parser.parse_known_args(
                [re.sub(r"(?<=--)[^.=]*", lambda m: m[0].replace("_", "-"), a) for a in args]
            )
            values = {name for name, value in vars(known).items() if value}
            assert not values & dangerous, args
    assert count > 250


@pytest.mark.parametrize(
    ("runtime", "args"),
    [
        ("vllm", ["--max-model-len", "32k", "--enforce-eager", "--gpu_memory_utilization=0.85", "-q", "fp8", "-O3"]),
        ("vllm", ["-O", "3", "-O=2", "-O.level=3", "--compilation-config", '{"level": 3, "cudagraph_mode": "FULL"}']),
        ("vllm", ["--compilation-config.cudagraph_capture_sizes", "[1, 2]", "--cudagraph-capture-sizes", "1", "2"]),
        ("vllm", ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}']),
        ("vllm", ["--speculative-config.method", "mtp", "--speculative-config.num_speculative_tokens=2"]),
        ("vllm", ["--hf-overrides", '{"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}', "--seed", "-1"]),
        ("vllm", ["--limit-mm-per-prompt", '{"image": 2}', "--limit-mm-per-prompt", "image=2,video=0"]),
        ("vllm", ["--structured-outputs-config.backend", "xgrammar", "--no-enable-prefix-caching"]),
        ("vllm", ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser=qwen3"]),
        ("vllm", ["--default-chat-template-kwargs", '{"enable_thinking": false}', "--generation-config", "vllm"]),
        ("vllm", ["--distributed-executor-backend", "mp", "-pp", "2", "--load-format=pt", "--swap-space", "8"]),
        ("llama.cpp", ["-c", "32768", "-ngl", "99", "-fa", "on", "-ctk", "q8_0", "--jinja", "-fa", "--no-mmap"]),
        ("llama.cpp", ["-ts", "3,1", "-ot", r"\.ffn_.*_exps\.=CPU", "--override-kv", "a.b=int:5", "--temp", "-0.5"]),
        ("llama.cpp", ["--chat-template", "chatml", "--chat_template", "{% if a / b %}", "--n-gpu-layers", "-1"]),
        ("llama.cpp", ["--chat-template-kwargs", '{"enable_thinking": false}', "--reasoning-budget", "0"]),
        ("sim", ["--start-seconds", "0.5", "--die-at-start", "CUDA out of memory: x/y", "--split_bytes"]),
    ],
)
def test_settings_that_people_use_pass(runtime: str, args: list[str]) -> None:
    assert refused_args(runtime, args) == ()
    assert not agent_refuses(runtime, args, {})
    assert not master_refuses(runtime, args, {})


@pytest.mark.parametrize(
    ("runtime", "args", "code"),
    [
        ("vllm", ["--host", "0.0.0.0"], "argument_managed"),
        ("vllm", ["-tp", "2"], "argument_managed"),
        ("vllm", ["--tensor_parallel_size=2"], "argument_managed"),
        ("vllm", ["--hos", "x"], "argument_refused"),
        ("vllm", ["--max-model", "1"], "argument_refused"),
        ("vllm", ["x"], "argument_refused"),
        ("vllm", ["--enforce-eager", "true"], "argument_refused"),
        ("vllm", ["--enforce-eager=/x"], "argument_value_refused"),
        ("vllm", ["--"], "argument_refused"),
        ("vllm", ["-"], "argument_refused"),
        ("vllm", ["-1"], "argument_refused"),
        ("vllm", ["--seed"], "argument_value_refused"),
        ("vllm", ["--seed", "--dtype=auto"], "argument_value_refused"),
        ("vllm", ["--seed", "-0.5"], "argument_value_refused"),
        ("vllm", ["--generation-config", "auto", "--generation-config", "/etc"], "argument_value_refused"),
        ("vllm", ["--generation-config=."], "argument_value_refused"),
        ("vllm", ["--speculative-config", '{"method": "ngram", "model": "/x"}'], "argument_value_refused"),
        ("vllm", ["--speculative-config.model", "/x"], "argument_value_refused"),
        ("vllm", ["--speculative-config.method", "draft_model"], "argument_value_refused"),
        ("vllm", ["--compilation-config", '{"backend": "os.system"}'], "argument_value_refused"),
        ("vllm", ["--compilation-config", '{"level": 3, "inductor_passes": {"a": "b.c"}}'], "argument_value_refused"),
        ("vllm", ["-O.backend=x.y"], "argument_value_refused"),
        ("vllm", ["-O{}"], "argument_refused"),
        ("vllm", ["--hf-overrides", '{"architectures": ["X"]}'], "argument_value_refused"),
        ("vllm", ["--hf-overrides.auto_map.AutoModel", "x"], "argument_value_refused"),
        ("vllm", ["--structured-outputs-config", '{"reasoning_parser_plugin": "x"}'], "argument_value_refused"),
        ("vllm", ["--distributed-executor-backend", "ray"], "argument_value_refused"),
        ("vllm", ["--distributed-executor-backend", "x.y"], "argument_value_refused"),
        ("vllm", ["--default-chat-template-kwargs", '{"a": "/x"}'], "argument_value_refused"),
        ("llama.cpp", ["-m", "x"], "argument_managed"),
        ("llama.cpp", ["-o", "x"], "argument_refused"),
        ("llama.cpp", ["--ctx-size=100"], "argument_refused"),
        ("llama.cpp", ["--log-prompts-dir", "/x"], "argument_refused"),
        ("llama.cpp", ["--props"], "argument_refused"),
        ("llama.cpp", ["--jinja", "x"], "argument_refused"),
        ("sim", ["--port", "1"], "argument_managed"),
        ("sim", ["--por", "1"], "argument_refused"),
    ],
)
def test_a_refusal_has_a_code_a_field_and_a_sentence(runtime: str, args: list[str], code: str) -> None:
    first = refused_args(runtime, args)[-1]
    assert first.code == code
    assert first.field.startswith("args.")
    assert first.message.endswith(".")
    with pytest.raises(InvalidRequest) as refused:
        parse({**MODELS[runtime], "args": args})
    assert {"code": code, "field": first.field, "message": first.message} in refused.value.problems


def test_a_sentence_gives_the_full_name_and_never_the_value() -> None:
    assert "--max-model-len" in refused_args("vllm", ["--max-model", "1"])[0].message
    assert "'='" in refused_args("llama.cpp", ["--ctx-size=100"])[0].message
    (found,) = refused_env("vllm", {"HF_TOKEN": "a secret/canary"})
    assert found.code == "env_value_refused"
    assert "canary" not in found.message


def test_the_owner_of_a_machine_allows_more_and_the_node_has_the_last_word(tmp_path: Path) -> None:
    file = tmp_path / "agent.json"
    file.write_text(
        json.dumps({"allowed_args": {"vllm": ["--chat_template"]}, "allowed_env": {"vllm": ["VLLM_PLUGINS"]}})
    )
    config = read_config(file)
    args, env = ["--chat-template", "/srv/t.jinja", "--seed", "1"], {"VLLM_PLUGINS": "x"}
    assert agent_refuses("vllm", args, env)
    assert not agent_refuses("vllm", args, env, config)
    assert not agent_refuses("vllm", ["--chat_template=/srv/t.jinja"], {}, config)
    assert agent_refuses("vllm", [*args, "--tool-parser-plugin", "x"], env, config)
    assert agent_refuses("llama.cpp", ["--chat-template-file", "x"], {}, config)
    allowed = Allowed(config.allowed_args, config.allowed_env)
    model = {**MODELS["vllm"], "args": args, "env": env}
    assert parse(model, lambda: allowed)
    with pytest.raises(InvalidRequest):
        parse(model)


def test_the_fleet_is_not_asked_while_the_list_decides() -> None:
    assert parse({**MODELS["vllm"], "args": ["--seed", "1"]}, lambda: pytest.fail("asked"))


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_args": {"vllm": ["--host"]}},
        {"allowed_args": {"vllm": ["--served_model_name"]}},
        {"allowed_env": {"sim": ["MIRBAD_LAUNCH_ID"]}},
        {"allowed_env": {"vllm": ["CUDA_VISIBLE_DEVICES"]}},
        {"allowed_args": {"tgi": ["--x"]}},
    ],
)
def test_the_owner_cannot_allow_what_the_agent_sets(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "agent.json").write_text(json.dumps(fields))
    with pytest.raises(BadAgentConfig):
        read_config(tmp_path / "agent.json")


def test_each_runtime_of_the_wire_has_a_list() -> None:
    assert set(ENGINES) == set(Runtime)
    for engine in ENGINES.values():
        assert not set(engine.arguments) & engine.managed
        assert not set(engine.variables) & engine.managed_variables


def test_code_runs_only_with_vllm_and_only_when_it_is_asked_for() -> None:
    assert runs_code("vllm", ["--trust-remote-code"])
    assert not runs_code("vllm", ["--no-trust-remote-code"])
    assert not runs_code("llama.cpp", ["--trust-remote-code"])
