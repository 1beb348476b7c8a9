"""Input that is accepted as a model."""

from typing import Any

import pytest

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
        ({"env": {"LD_PRELOAD": "x"}}, "env_name_refused", "env.LD_PRELOAD"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "env_name_reserved", "env.CUDA_VISIBLE_DEVICES"),
        ({"secretEnv": {"PYTHONWARNINGS": "x"}}, "env_name_refused", "secretEnv.PYTHONWARNINGS"),
        ({"secretEnv": {"HF_TOKEN": "/x"}}, "env_value_refused", "secretEnv.HF_TOKEN"),
        ({"args": ["--seed", "1"]}, "argument_refused", "args.0"),
        ({"env": {"A": 1}}, "invalid", "env.A"),
        ({"env": {"A": "x"}, "secretEnv": {"A": "y"}}, "env_name_duplicate", None),
        ({"contextLength": 0}, "invalid", "contextLength"),
        ({"contextLength": "4096"}, "invalid", "contextLength"),
        ({"autoStart": "yes"}, "invalid", "autoStart"),
        ({"restartPolicy": "always"}, "invalid", "restartPolicy"),
        ({"restartPolicy": ""}, "invalid", "restartPolicy"),
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


@pytest.mark.parametrize("argument", ["--trust-remote-code", "--trust_remote_code", "--trust-remote-code=true"])
def test_code_beside_the_weights_wants_the_same_leave_as_pickles(argument: str) -> None:
    (problem,) = refusal(VLLM, args=[argument]).problems
    assert problem["code"] == "code_refused"
    assert parse({**VLLM, "args": [argument], "allowPickle": True})
    assert parse({**VLLM, "args": ["--no-trust-remote-code"]})


def test_other_arguments_pass() -> None:
    assert parse({**VLLM, "args": ["--max-model-len", "4096", "--enforce-eager"]})
    assert parse({**LLAMA, "args": ["-c", "4096", "--n-gpu-layers", "-1"]})


def test_a_secret_is_not_repeated_in_the_refusal() -> None:
    error = refusal(SIM, secretEnv={"HF_TOKEN": "hf_canary123456\0"})
    assert "canary" not in str(error.problems) + error.detail


def test_every_problem_is_told_at_once() -> None:
    error = refusal(SIM, id="Tiny", args=[1], surprise=2)
    assert {problem["code"] for problem in error.problems} == {"id_invalid", "invalid", "unknown_field"}
