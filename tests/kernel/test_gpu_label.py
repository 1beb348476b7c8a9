"""The label of a GPU."""

import pytest

from agent.common.gpu_label import gone_gpu_label, gpu_label


@pytest.mark.parametrize(
    ("index", "uuid", "label"),
    [(0, "GPU-12345678", "GPU 0"), (None, "GPU-aaaa-12345678", "GPU 12345678"), (None, "", "GPU")],
)
def test_a_card_is_named_by_its_index_or_by_the_end_of_its_uuid(index, uuid, label) -> None:
    assert gpu_label(index, uuid) == label


def test_a_card_that_is_gone_has_no_number() -> None:
    assert gone_gpu_label("pc-1") == "GPU — · no longer on pc-1"
