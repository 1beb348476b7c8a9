"""The main job through a real Docker Engine, by digest from a real registry, on two nodes."""

import pytest

from tests.bench.images import SIM
from tests.e2e.containers import ContainerFleet
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.container, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def two(docker_bench, tmp_path_factory):
    with ContainerFleet(tmp_path_factory.mktemp("containers"), docker_bench) as made:
        for model, node in (("here", "local"), ("there", "pc-2")):
            made.define(model, node)
            made.fleet.api("POST", f"models/{model}/start")
        for model in ("here", "there"):
            assert made.fleet.wait_for_answer(model, 90)
        yield made


def ended(two, operation):
    """The operation once it is over."""

    def over():
        row = two.fleet.api("GET", f"operations/{operation['id']}")
        return row if row["outcome"] != "open" else None

    return until(over, seconds=60, what="the operation to end")


def test_a_container_by_digest_streams_an_answer_on_each_of_two_nodes(two):
    for model in ("here", "there"):
        assert two.fleet.chat(model)
    labels = {row.labels["mirbad.model"]: row.labels for row in two.bench.client.containers.list()}
    assert {model: row["mirbad.node"] for model, row in labels.items()} == {"here": "local", "there": "pc-2"}
    assert len({row["mirbad.fleet"] for row in labels.values()}) == 1


def test_an_agent_that_was_killed_adopts_its_own_container_and_leaves_the_others(two):
    before = two.containers()
    two.restart_agent()
    assert two.fleet.wait_for_answer("there", 60)
    assert two.fleet.wait_for_answer("here", 60)
    assert two.containers() == before


def test_an_image_by_tag_alone_is_refused_on_a_node_that_does_not_allow_it(two):
    two.define("by-tag", "pc-2", digest=False)
    refused = two.fleet.api("POST", "models/by-tag/start", expect=422)
    assert refused["code"] == "spec_rejected"
    assert "must name an approved image digest" in refused["detail"]


def test_images_are_listed_pulled_by_the_api_and_refused_where_they_are_not_approved(two):
    approved = two.bench.image(SIM).reference
    seen = two.fleet.api("GET", "nodes/pc-2/images")
    assert (seen["allowTagPulls"], seen["problem"]) == (False, "")
    assert [(one["reference"], one["present"]) for one in seen["approved"]] == [(approved, True)]
    assert ended(two, two.fleet.api("POST", "nodes/pc-2/images/pull", {"image": approved}))["outcome"] == "succeeded"
    other = {"image": "registry.invalid/other", "imageDigest": f"sha256:{'0' * 64}"}
    refused = two.fleet.api("POST", "nodes/pc-2/images/pull", other, expect=422)
    assert refused["code"] == "spec_rejected"
    # the master's own node pulls by any name, and says why it cannot
    failed = ended(two, two.fleet.api("POST", "nodes/local/images/pull", other))
    assert (failed["outcome"], failed["error"]["code"]) == ("failed", "registry_unreachable")


def test_stopping_one_leaves_the_other(two):
    assert ended(two, two.fleet.api("POST", "models/here/stop"))["outcome"] == "succeeded"
    assert "here" not in two.containers()
    assert two.fleet.chat("there")
    two.fleet.api("POST", "models/here/start")
    assert two.fleet.wait_for_answer("here", 90)
