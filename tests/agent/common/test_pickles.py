"""Pickles by their names, and the sentence that refuses them."""

import pytest

from agent.common.formats.pickles import is_pickle, pickles_in, refusal_words

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "name",
    [
        "a.bin", "B.PT", "c.pth", "d.ckpt", "e.pkl", "f.pt2", "folder/g.npy",
        "g.bin?download=true", "h.pt#x", "i.pt?a#b?c", "https://x/i.pkl/", "j.bin. /", "what?.bin", "issue#1.pt",
        "k.pkl.gz", "l.pkl.tar.xz.gz.PKL.zst", "m.npy.gz.bz2", "n.joblib.z?raw",
    ],
)  # fmt: skip
def test_a_pickle_is_known_by_its_ending_alone(name: str) -> None:
    assert is_pickle(name)


@pytest.mark.parametrize(
    "name", ["a.safetensors", "b.gguf", "bin", "c.bin.json", "x?file=a.bin.md", "d.onnx", "e.gz", "f.bin.gz.md", ""]
)
def test_a_name_with_another_ending_is_no_pickle(name: str) -> None:
    assert not is_pickle(name)


def test_pickles_are_found_in_their_order() -> None:
    assert pickles_in(["z.bin", "a.gguf", "a.pt", "z.bin"]) == ("z.bin", "a.pt", "z.bin")
    assert pickles_in(["a.gguf"]) == ()


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (1, "0.pt"),
        (5, "0.pt, 1.pt, 2.pt, 3.pt, 4.pt"),
        (6, "0.pt, 1.pt, 2.pt, 3.pt, 4.pt and 1 more"),
        (12, "0.pt, 1.pt, 2.pt, 3.pt, 4.pt and 7 more"),
    ],
)
def test_a_refusal_names_five_pickles_and_counts_the_others(count: int, shown: str) -> None:
    assert refusal_words("acme/x", tuple(f"{number}.pt" for number in range(count))) == (
        f"acme/x would bring Python pickles ({shown}), which run whatever they hold when they are loaded. Choose "
        "safetensors or GGUF files instead, or allow pickles for this on purpose."
    )
