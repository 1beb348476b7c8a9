"""Cards of a node as rows: those that are gone, those that told no name, those that cannot be read for a while."""

import pytest

from agent.wire.capability import UNNAMED_GPU, GpuCapability
from nodes import reachability
from nodes.capability import problems
from nodes.models import Gpu, NodeCondition
from tests.pages import seed

pytestmark = [pytest.mark.app, pytest.mark.django_db]


def told(*cards: GpuCapability, problem: str | None = None):
    return seed._capabilities("pc-1", cards, ()).model_copy(update={"gpu_problem": problem})


def test_a_card_that_told_no_uuid_leaves_no_row_behind():
    seed.node("pc-1", "")
    lost = GpuCapability(uuid=f"{UNNAMED_GPU}1", index=1, lost=True, problem="GPU 1 is lost.")
    reachability.observe_capabilities("pc-1", told(GpuCapability(uuid="GPU-1", index=0), lost), 1)
    assert Gpu.objects.count() == 2
    assert NodeCondition.objects.get(node="pc-1").detail == "GPU 1 is lost."
    reachability.observe_capabilities("pc-1", told(GpuCapability(uuid="GPU-2", index=1)), 2)
    assert dict(Gpu.objects.values_list("uuid", "present")) == {"GPU-1": False, "GPU-2": True}


def test_a_driver_that_does_not_answer_is_said_once_and_a_lost_card_still():
    cards = [GpuCapability(uuid=f"GPU-{n}", index=n, problem="It cannot be read: it hangs") for n in range(8)]
    lost = GpuCapability(uuid="GPU-9", index=9, lost=True, problem="GPU 9 is lost.")
    assert [words for _, _, words in problems(told(*cards, lost, problem="it hangs"))] == ["it hangs", "GPU 9 is lost."]
    assert len(problems(told(*cards))) == 8
