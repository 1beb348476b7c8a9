"""Images of engines: which may be pulled on a node, and how a pull ends."""

from collections.abc import Callable

import pytest

from agent.config import AgentConfig
from agent.deliveries.pulls import ImagePulls
from agent.errors import AgentError
from agent.wire.capability import Delivery
from agent.wire.errors import AgentCode
from agent.wire.images import PullRequest, PullState, PullView
from agent.wire.instances import InstanceState
from tests.agent.engines.conftest import Node, contained, spec
from tests.bench.docker import BenchImage, DockerBench
from tests.waiting import until_async

pytestmark = pytest.mark.container

READY, EXITED = InstanceState.READY, InstanceState.EXITED


@pytest.mark.parametrize(
    ("image", "digest", "says"),
    [
        (None, None, "needs an image"),
        ("vllm/vllm-openai:latest", None, "approved image digest"),
        ("vllm/vllm-openai", "sha256:" + "0" * 64, "is not approved on this node"),
        ("vllm/vllm-openai", "sha256:short", "64 hex digits"),
        ("not an image", None, "is not the name of an image"),
    ],
)
async def test_an_image_that_the_owner_has_not_approved_is_refused(
    dock: Node, image: str | None, digest: str | None, says: str
) -> None:
    with pytest.raises(AgentError) as refused:
        await dock.instances.launch("i1", "op1", spec(delivery=Delivery.CONTAINER, image=image, image_digest=digest))
    assert refused.value.code is AgentCode.SPEC_REJECTED
    assert refused.value.detail.startswith("Launch spec rejected: ")
    assert says in refused.value.detail


async def test_a_tag_may_be_pulled_where_the_owner_allows_it(
    docker_config: AgentConfig, sim: BenchImage, make_node: Callable[[AgentConfig], Node], docker_bench: DockerBench
) -> None:
    node = make_node(docker_config.model_copy(update={"allow_tag_pulls": True, "approved_images": ()}))
    await node.instances.recover()
    await node.instances.launch("i1", "op1", contained(sim, image=f"{sim.repository}:1", image_digest=None))
    view = await node.until("i1", READY, seconds=60)
    assert view.image_digest == sim.digest
    await node.instances.stop_everything(1.0)


async def test_an_image_that_is_not_in_the_registry_says_so(
    dock: Node, docker_config: AgentConfig, sim: BenchImage, make_node: Callable[[AgentConfig], Node]
) -> None:
    absent = BenchImage(sim.repository, "sha256:" + "1" * 64)
    node = make_node(
        docker_config.model_copy(
            update={"approved_images": (absent.reference,), "state_dir": dock.config.state_dir / "b"}
        )
    )
    await node.instances.recover()
    await node.instances.launch("i1", "op1", contained(absent))
    view = await node.until("i1", EXITED, seconds=30)
    assert view.reason_code == "image_not_found"
    assert "no such image" in (view.reason or "")
    assert absent.digest in (view.reason or "")


async def test_an_image_is_brought_without_a_launch_and_listed(
    docker_config: AgentConfig, docker_bench: DockerBench, sim: BenchImage
) -> None:
    docker_bench.forget(sim.reference)
    absent = f"{sim.repository}@sha256:{'2' * 64}"
    pulls = ImagePulls(docker_config.model_copy(update={"approved_images": (sim.reference, absent)}))

    async def over(pull_id: str, image: str) -> PullView:
        pulls.begin(pull_id, PullRequest(image=image))
        await until_async(lambda: pulls.view(pull_id).state is not PullState.PULLING, "the pull to end", 60)
        return pulls.view(pull_id)

    assert (await over("p1", sim.reference)).state is PullState.READY
    listed = (await pulls.listed()).images
    (here,) = [image for image in listed if sim.reference in image.references]
    assert here.size_bytes
    failed = await over("p2", absent)
    assert (failed.state, failed.reason_code) == (PullState.FAILED, "image_not_found")
    assert "no such image" in (failed.reason or "")
    await pulls.close()
