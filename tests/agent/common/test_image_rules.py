"""The images that a node runs, and the clause that says how to change it."""

import pytest

from agent.common import image_rules
from agent.common.image_rules import BadImage

pytestmark = pytest.mark.unit

DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
NO_DIGEST = "the spec must name an approved image digest"
PIN = "Pin the image by its digest, or set allow_tag_pulls in agent.json on this node."
ADD = f"add vllm/vllm-openai@{OTHER} to approved_images in its agent.json and restart the agent."


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("index.docker.io/vllm/vllm-openai", "vllm/vllm-openai"),
        ("docker.io/vllm/vllm-openai", "vllm/vllm-openai"),
        ("docker.io/library/redis", "redis"),
        ("index.docker.io/library/redis", "redis"),
        ("library/redis", "redis"),
        ("ghcr.io/ggml-org/llama.cpp", "ghcr.io/ggml-org/llama.cpp"),
        ("ghcr.io/library/redis", "ghcr.io/library/redis"),
    ],
)
def test_the_prefixes_of_docker_are_left_out(text, plain):
    assert image_rules.plain(text) == plain


@pytest.mark.parametrize(
    ("text", "digest", "said"),
    [
        ("", None, "a container needs an image; set the model's image or the node's default image."),
        (
            "vllm/vllm-openai:v1",
            None,
            f"{NO_DIGEST}; 'vllm/vllm-openai:v1' names none. {PIN}",
        ),
        (
            "vllm/vllm-openai",
            OTHER,
            f"image 'vllm/vllm-openai' with digest '{OTHER}' is not approved on this node; {ADD}",
        ),
        (f"vllm/vllm-openai@{DIGEST}", OTHER, f"the image names the digest {DIGEST}, the spec {OTHER}."),
    ],
)
def test_a_refusal_says_how_to_change_it(text, digest, said):
    with pytest.raises(BadImage) as refused:
        image_rules.admitted(text, digest, approved=[f"vllm/vllm-openai@{DIGEST}"], allow_tag_pulls=False)
    assert str(refused.value) == said


def test_an_approved_image_is_run_whatever_prefix_it_has():
    found = image_rules.admitted(
        "docker.io/vllm/vllm-openai:v1", DIGEST, approved=[f"vllm/vllm-openai@{DIGEST}"], allow_tag_pulls=False
    )
    assert found.reference == f"docker.io/vllm/vllm-openai@{DIGEST}"


def test_with_tag_pulls_every_image_is_run():
    assert image_rules.admitted("redis", None, approved=[], allow_tag_pulls=True).reference == "redis:latest"
