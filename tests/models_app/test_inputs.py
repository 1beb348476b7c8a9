"""What may be sent as a model."""

from typing import Any

import pytest

from agent.runtimes import flags as agent_flags
from agent.runtimes import llama_cpp, sim, vllm
from mirbad.kernel.errors import InvalidRequest
from models_app.registry import parse

pytestmark = pytest.mark.unit

SIM = {"id": "tiny", "runtime": "sim", "delivery": "process"}
LLAMA = {"id": "tiny", "runtime": "llama.cpp", "delivery": "process", "sources": [{"folder": "tiny", "file": "a.gguf"}]}
VLLM = {"id": "tiny", "runtime": "vllm", "delivery": "container", "sources": [{"folder": "org/tiny"}]}


def refusal(base: dict[str, Any], **changes: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse({**base, **changes})
    return caught.value


@pytest.mark.parametrize("data", [SIM, LLAMA, VLLM])
def test_a_plain_definition_passes(data) -> None:
    assert parse(data).id == "tiny"


def test_a_served_name_may_hold_a_slash_and_an_id_may_not() -> None:
    assert parse({**SIM, "servedNames": ["org/Tiny-1.0:latest"]}).names == ("org/Tiny-1.0:latest",)
    assert parse(SIM).names == ("tiny",)
    (problem,) = refusal(SIM, id="org/tiny").problems
    assert (problem["code"], problem["field"]) == ("id_invalid", "id")


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"id": "Tiny"}, "id_invalid", "id"),
        ({"id": ""}, "id_invalid", "id"),
        ({"runtime": "tgi"}, "invalid", "runtime"),
        ({"delivery": "rocket"}, "invalid", "delivery"),
        ({"servedNames": ["a b"]}, "served_name_invalid", "servedNames.0"),
        ({"servedNames": ["a//b"]}, "served_name_invalid", "servedNames.0"),
        ({"servedNames": ["a/"]}, "served_name_invalid", "servedNames.0"),
        ({"servedNames": ["a", "a"]}, "served_name_duplicate", None),
        ({"args": "--x"}, "invalid", "args"),
        ({"args": [1]}, "invalid", "args.0"),
        ({"args": ["a\0b"]}, "text_invalid", "args.0"),
        ({"env": {"1A": "x"}}, "env_name_invalid", "env.1A"),
        ({"env": {"A B": "x"}}, "env_name_invalid", "env.A B"),
        ({"env": {"LD_PRELOAD": "x"}}, "env_name_reserved", "env.LD_PRELOAD"),
        ({"env": {"LLAMA_ARG_HOST": "0.0.0.0"}}, "env_name_reserved", None),
        ({"env": {"A": 1}}, "invalid", "env.A"),
        ({"env": {"A": "x"}, "secretEnv": {"A": "y"}}, "env_name_duplicate", None),
        ({"contextLength": 0}, "invalid", "contextLength"),
        ({"contextLength": "4096"}, "invalid", "contextLength"),
        ({"autoStart": "yes"}, "invalid", "autoStart"),
        ({"startTimeoutSeconds": 0}, "invalid", "startTimeoutSeconds"),
        ({"gpuMemoryBudgetBytes": -1}, "invalid", "gpuMemoryBudgetBytes"),
        ({"surprise": 1}, "unknown_field", "surprise"),
        ({"sources": [{"folder": "../etc"}]}, "path_invalid", "sources.0.folder"),
        ({"sources": [{"folder": "/etc"}]}, "path_invalid", "sources.0.folder"),
        ({"sources": [{"folder": "a\\..\\b"}]}, "path_invalid", "sources.0.folder"),
        ({"sources": [{"folder": "a", "file": "x/../../y"}]}, "path_invalid", "sources.0.file"),
        ({"sources": [{"folder": ""}]}, "folder_required", "sources.0"),
        ({"sources": [{"kind": "huggingface", "folder": "a"}]}, "repository_required", "sources.0"),
        ({"image": "vllm/vllm:1"}, "image_without_container", None),
        ({"placement": {"nodeId": ""}}, "invalid", "placement.nodeId"),
    ],
)
def test_a_broken_rule_is_told_with_its_code_and_field(changes, code, field) -> None:
    error = refusal(SIM, **changes)
    assert code in [problem["code"] for problem in error.problems]
    if field is not None:
        assert field in [problem.get("field") for problem in error.problems]
    assert (error.code, error.http_status) == ("invalid_request", 400)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"image": "repo/x@sha256:" + "a" * 64}, "image_has_digest"),
        ({"image": "repo/ x"}, "image_invalid"),
        ({"image": "repo/x", "imageDigest": "sha256:xyz"}, "image_digest_invalid"),
        ({"image": "repo/x", "imageDigest": "sha256:" + "A" * 64}, "image_digest_invalid"),
        ({"imageDigest": "sha256:" + "a" * 64}, "image_required"),
        ({"sources": []}, "source_required"),
    ],
)
def test_rules_of_containers_and_weights(changes, code) -> None:
    assert code in [problem["code"] for problem in refusal(VLLM, **changes).problems]


def test_llama_cpp_reads_gguf_alone() -> None:
    error = refusal(LLAMA, sources=[{"folder": "tiny", "file": "model.safetensors"}])
    assert [problem["code"] for problem in error.problems] == ["file_not_gguf"]


@pytest.mark.parametrize(
    ("base", "args"),
    [
        (VLLM, ["--host", "0.0.0.0"]),
        (VLLM, ["--port=1"]),
        (VLLM, ["--api-key", "x"]),
        (VLLM, ["--api_key=x"]),
        (VLLM, ["--api-k", "x"]),
        (VLLM, ["--served-model-name", "y"]),
        (VLLM, ["--chat-template=/etc/passwd"]),
        (VLLM, ["--middleware", "os.system"]),
        (VLLM, ["-tp", "2"]),
        (LLAMA, ["-m", "/etc/passwd"]),
        (LLAMA, ["--api-key-file=/x"]),
        (LLAMA, ["--slot-save-path", "/"]),
        (LLAMA, ["-a", "other"]),
        (SIM, ["--port", "1"]),
    ],
)
def test_arguments_that_move_the_address_carry_a_key_or_read_files_are_refused(base, args) -> None:
    (problem,) = refusal(base, args=args).problems
    assert problem["code"] == "argument_managed"
    assert args[0].split("=")[0] in problem["message"]


@pytest.mark.parametrize(("base", "runtime"), [(VLLM, vllm), (LLAMA, llama_cpp), (SIM, sim)])
def test_what_the_agent_would_refuse_is_refused_when_it_is_saved(base, runtime) -> None:
    for flag in runtime._DENIED:
        assert refusal(base, args=[flag]).problems[0]["code"] == "argument_managed", flag
    for name in agent_flags._OWN_VARIABLES:
        assert refusal(base, env={name: "x"}).problems[0]["code"] == "env_name_reserved", name


@pytest.mark.parametrize("argument", ["--trust-remote-code", "--trust_remote", "--trust-remote-code=true"])
def test_code_beside_the_weights_wants_the_same_leave_as_pickles(argument: str) -> None:
    (problem,) = refusal(VLLM, args=[argument]).problems
    assert problem["code"] == "code_refused"
    assert parse({**VLLM, "args": [argument], "allowPickle": True})
    assert parse({**VLLM, "args": ["--no-trust-remote-code"]})


@pytest.mark.parametrize("argument", ["-n2", "-r1", "--data_parallel_addr"])
def test_a_flag_of_one_letter_is_known_with_its_value_attached(argument: str) -> None:
    assert refusal(VLLM, args=[argument]).problems[0]["code"] == "argument_managed"


@pytest.mark.parametrize("argument", ["-m", "-hf", "-mu", "-hfr", "-hff", "-mm", "-jf"])
def test_short_flags_of_llama_cpp_that_name_weights_or_files_are_refused(argument: str) -> None:
    assert refusal(LLAMA, args=[argument, "x"]).problems[0]["code"] == "argument_managed"


def test_llama_cpp_takes_no_beginning_of_a_flag_for_the_flag() -> None:
    assert parse({**LLAMA, "args": ["--chat-template", "chatml", "--mode", "x"]})


def test_other_arguments_pass() -> None:
    assert parse({**VLLM, "args": ["--max-model-len", "4096", "--enforce-eager"]})
    assert parse({**LLAMA, "args": ["-c", "4096", "--n-gpu-layers", "-1"]})


def test_a_secret_is_not_repeated_in_the_refusal() -> None:
    error = refusal(SIM, secretEnv={"HF_TOKEN": "hf_canary123456\0"})
    assert "canary" not in str(error.problems) + error.detail


def test_every_problem_is_told_at_once() -> None:
    error = refusal(SIM, id="Tiny", args=[1], surprise=2)
    assert {problem["code"] for problem in error.problems} == {"id_invalid", "invalid", "unknown_field"}
