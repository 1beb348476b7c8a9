"""Headers of GGUF files: every kind of value, every bound, and what is kept of each."""

import io
import struct
from pathlib import Path
from typing import Any

import pytest

from agent.common.formats import gguf
from agent.common.formats.gguf import BadGguf, CutShort, GgufHeader

pytestmark = pytest.mark.unit

U8, F32, TEXT, LIST, U64, F64 = 0, 6, 8, 9, 10, 12
TENSOR_F32, TENSOR_Q4_K, TENSOR_I8, TENSOR_UNKNOWN = 0, 12, 24, 99
REST = b"\0" * 64


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def key(name: str, kind: int, form: str, *values: Any) -> bytes:
    return text(name) + struct.pack(f"<I{form}", kind, *values)


def word(name: str, value: str | bytes) -> bytes:
    return text(name) + struct.pack("<I", TEXT) + text(value)


def items(name: str, kind: int, count: int, data: bytes = b"") -> bytes:
    return text(name) + struct.pack("<IIQ", LIST, kind, count) + data


def tensor(name: str, kind: int, *dimensions: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, 0)


def file(
    *keys: bytes, tensors: tuple[bytes, ...] = (), key_count: int | None = None, tensor_count: int | None = None
) -> io.BytesIO:
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    return io.BytesIO(b"GGUF" + struct.pack("<IQQ", 3, *counts) + b"".join(keys) + b"".join(tensors))


def sizes(*tensors: bytes) -> tuple[int | None, int | None, int | None]:
    found = gguf.parse(file(tensors=tensors))
    return found.tensor_bytes, found.expert_bytes, found.input_table_bytes


@pytest.mark.parametrize(
    ("kind", "form", "value"),
    [
        (0, "B", 255), (1, "b", -1), (2, "H", 65535), (3, "h", -2), (4, "I", 2**32 - 1), (5, "i", -3),
        (6, "f", 1.5), (7, "?", True), (10, "Q", 2**64 - 1), (11, "q", -4), (12, "d", 2.25),
    ],
)  # fmt: skip
def test_a_number_is_read_by_its_type(kind: int, form: str, value: float) -> None:
    found = gguf.parse(file(key("x", kind, form, value), word("after", "it")))
    assert found.values == {"x": value, "after": "it"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_unknown(value: float) -> None:
    assert gguf.parse(file(key("x", F32, "f", value), key("y", F64, "d", value))).values == {"x": None, "y": None}


def test_a_text_is_utf_8_and_what_is_not_is_replaced() -> None:
    assert gguf.parse(file(word("x", "é"), word("y", b"a\xffb"))).values == {
        "x": "é",
        "y": "a\N{REPLACEMENT CHARACTER}b",
    }


@pytest.mark.parametrize("kind", [13, 255])
def test_an_unknown_type_is_named(kind: int) -> None:
    with pytest.raises(BadGguf, match=f"^The header holds a value of the unknown type {kind}\\.$"):
        gguf.parse(file(text("x") + struct.pack("<I", kind) + REST))
    with pytest.raises(BadGguf, match=f"^The header holds a list of the unknown type {kind}\\.$"):
        gguf.parse(file(items("x", kind, 1, REST)))


def test_a_list_of_lists_is_refused() -> None:
    with pytest.raises(BadGguf, match="a list of the unknown type 9"):
        gguf.parse(file(items("x", LIST, 1, REST)))


def test_numbers_of_a_short_list_are_kept_and_a_long_one_is_counted() -> None:
    found = gguf.parse(
        file(
            items("short", U8, 1024, bytes(range(256)) * 4),
            items("long", U8, 1025, b"\1" * 1025),
            items("empty", U8, 0),
            word("after", "it"),
        )
    )
    assert found.values == {"short": list(range(256)) * 4, "empty": [], "after": "it"}
    assert found.lengths == {"short": 1024, "long": 1025, "empty": 0}


def test_a_list_with_a_number_that_is_not_finite_is_only_counted() -> None:
    found = gguf.parse(file(items("x", F32, 2, struct.pack("<2f", 1.0, float("nan")))))
    assert (found.values, found.lengths) == ({}, {"x": 2})


def test_texts_of_a_list_are_only_counted() -> None:
    found = gguf.parse(file(items("tokenizer.ggml.tokens", TEXT, 2, text("a") + text("bc")), word("after", "it")))
    assert (found.values, found.lengths) == ({"after": "it"}, {"tokenizer.ggml.tokens": 2})


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("order", ["<", ">"], ids=["little-endian", "big-endian"])
def test_versions_2_and_3_are_read_in_either_order_of_bytes(version: int, order: str) -> None:
    data = b"GGUF" + struct.pack(f"{order}IQQQ", version, 0, 1, 1) + b"x" + struct.pack(f"{order}IH", 2, 258)
    assert gguf.parse(io.BytesIO(data)).values == {"x": 258}


@pytest.mark.parametrize(
    ("order", "version"), [("<", 0), ("<", 1), ("<", 4), (">", 1), (">", 4), (">", 128), ("<", 0x30003)]
)
def test_another_version_is_named(order: str, version: int) -> None:
    with pytest.raises(BadGguf, match=f"^GGUF version {version} is not known here\\.$"):
        gguf.parse(io.BytesIO(b"GGUF" + struct.pack(f"{order}I", version) + REST))


def test_a_foreign_file_is_refused_at_its_first_bytes() -> None:
    with pytest.raises(BadGguf, match=r"^The file does not begin as a GGUF file does\.$"):
        gguf.parse(io.BytesIO(b"GGML" + REST))


@pytest.mark.parametrize(
    ("most", "beyond", "sentence"),
    [
        (file(key_count=4096), file(key_count=4097), "The header has more keys than any may have."),
        (file(tensor_count=2**18), file(tensor_count=2**18 + 1), "The header has more tensors than any may have."),
        (
            file(items("x", U8, 2**22)),
            file(items("x", U8, 2**22 + 1)),
            "A list in the header is longer than any may be.",
        ),
        (
            file(struct.pack("<Q", 2**20)),
            file(struct.pack("<Q", 2**20 + 1)),
            "A text in the header is longer than any may be.",
        ),
        (
            file(tensors=(text("x") + struct.pack("<I", 8),)),
            file(tensors=(text("x") + struct.pack("<I", 9),)),
            "A tensor has more dimensions than any may have.",
        ),
    ],
    ids=["keys", "tensors", "list", "text", "dimensions"],
)
def test_a_count_beyond_its_bound_is_refused_before_anything_is_read(
    most: io.BytesIO, beyond: io.BytesIO, sentence: str
) -> None:
    with pytest.raises(BadGguf) as caught:
        gguf.parse(beyond)
    assert str(caught.value) == sentence
    with pytest.raises(CutShort, match=r"^The file is cut short in its header\.$"):
        gguf.parse(most)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (file(key_count=2**64 - 1), "The header has more keys than any may have."),
        (file(tensor_count=2**64 - 1), "The header has more tensors than any may have."),
        (file(items("x", U8, 2**64 - 1)), "A list in the header is longer than any may be."),
        (file(struct.pack("<Q", 2**64 - 1)), "A text in the header is longer than any may be."),
        (
            file(tensors=(text("x") + struct.pack("<I", 2**32 - 1),)),
            "A tensor has more dimensions than any may have.",
        ),
        (file(text("x") + struct.pack("<I", 2**32 - 1)), "The header holds a value of the unknown type 4294967295."),
        (file(items("x", 2**32 - 1, 0)), "The header holds a list of the unknown type 4294967295."),
        (io.BytesIO(b"GGUF" + b"\xff" * 4), "GGUF version 4294967295 is not known here."),
    ],
    ids=["keys", "tensors", "list", "text", "dimensions", "type", "type of a list", "version"],
)
def test_a_number_with_its_highest_bit_set_is_large_and_not_negative(data: io.BytesIO, sentence: str) -> None:
    with pytest.raises(BadGguf) as caught:
        gguf.parse(data)
    assert str(caught.value) == sentence


def large(path: Path, size: int) -> Path:
    """A header of `size` bytes in a sparse file: 255 texts of 1 MiB, and one that fills the rest."""
    with path.open("wb") as out:
        out.write(file(items("x", TEXT, 256)).getvalue())
        for _ in range(255):
            out.write(struct.pack("<Q", 2**20))
            out.seek(2**20, io.SEEK_CUR)
        out.write(struct.pack("<Q", size - out.tell() - 8))
        out.truncate(size)
    return path


def test_a_header_has_256_mib_at_most(tmp_path: Path) -> None:
    with large(tmp_path / "most.gguf", 2**28).open("rb") as most:
        assert gguf.parse(most).lengths == {"x": 256}
    with (
        large(tmp_path / "beyond.gguf", 2**28 + 1).open("rb") as beyond,
        pytest.raises(BadGguf, match=r"^The header is larger than that of any model\.$"),
    ):
        gguf.parse(beyond)


def test_a_header_without_its_tensors_is_read_when_keys_are_enough() -> None:
    found = gguf.parse(file(word("x", "y"), tensor_count=3), tensors=False)
    assert (found.values, found.tensors) == ({"x": "y"}, 3)
    assert (found.tensor_bytes, found.expert_bytes, found.input_table_bytes) == (None, None, None)
    with pytest.raises(CutShort):
        gguf.parse(file(word("x", "y"), tensor_count=3))


def test_what_was_read_before_the_cut_is_kept() -> None:
    header = GgufHeader()
    with pytest.raises(CutShort):
        gguf.fill(header, file(word("x", "y"), items("tokens", TEXT, 9), key_count=3), tensors=False)
    assert (header.values, header.lengths) == ({"x": "y"}, {"tokens": 9})
    with pytest.raises(CutShort):
        gguf.fill(GgufHeader(), file(tensor_count=1))


def test_a_description_ends_before_the_vocabulary() -> None:
    described = file(
        word("general.architecture", "llama"),
        items("general.tags", TEXT, 1, text("chat")),
        items("llama.heads", U8, 2, b"\4\2"),
        word("tokenizer.ggml.model", "gpt2"),
        items("tokenizer.ggml.tokens", TEXT, 1000),
        key_count=9,
    )
    assert gguf.general(described) == {
        "general.architecture": "llama",
        "llama.heads": [4, 2],
        "tokenizer.ggml.model": "gpt2",
    }
    assert gguf.general(file(word("x", "y"))) == {"x": "y"}
    with pytest.raises(BadGguf, match="unknown type 4294967295"):
        gguf.general(file(text("x") + struct.pack("<I", 2**32 - 1)))


def test_a_tensor_takes_whole_blocks() -> None:
    assert sizes(tensor("a", TENSOR_F32, 3, 5)) == (60, 0, 0)
    assert sizes(tensor("a", TENSOR_F32)) == (4, 0, 0), "a single number"
    assert [sizes(tensor("a", TENSOR_Q4_K, count))[0] for count in (0, 1, 256, 257)] == [0, 144, 144, 288]


def test_experts_and_the_input_table_are_summed_apart() -> None:
    assert sizes(
        tensor("token_embd.weight", TENSOR_F32, 1),
        tensor("blk.0.ffn_up_exps.weight", TENSOR_F32, 10),
        tensor("blk.1.ffn_gate_exps_x", TENSOR_F32, 100),
        tensor("blk.1.ffn_exps", TENSOR_F32, 1000),
        tensor("token_embd.weight.x", TENSOR_F32, 1000),
        tensor("blk.0.ffn_down_exps.weight", TENSOR_F32, 10),
    ) == (4 * 2121, 4 * 120, 4)


def test_one_tensor_of_an_unknown_type_makes_every_sum_unknown() -> None:
    known, unknown = tensor("a", TENSOR_F32, 1), tensor("b", TENSOR_UNKNOWN, 1)
    for order in ((unknown, known), (known, unknown), (known, unknown, known)):
        assert sizes(*order) == (None, None, None)
    with pytest.raises(CutShort):
        gguf.parse(file(tensors=(unknown, unknown), tensor_count=3))


def test_a_sum_that_no_model_has_is_unknown() -> None:
    assert sizes(tensor("a", TENSOR_I8, 2**62 - 1)) == (2**62 - 1, 0, 0)
    assert sizes(tensor("a", TENSOR_I8, 2**62)) == (None, None, None)
    assert sizes(tensor("a", TENSOR_I8, 2**64 - 1)) == (None, None, None)
    assert gguf.parse(file()).tensor_bytes == 0


def test_the_shape_is_the_keys_of_the_architecture_and_the_general_ones() -> None:
    values: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "x" * 200,
        "general.license": "x" * 201,
        "general.unknown": None,
        "llama.head_count": [8, 4],
        "llama.context_length": 4096,
        "llamas.context_length": 1,
        "split.count": 2,
        "tokenizer.ggml.model": "gpt2",
    }
    assert gguf.shape_values(GgufHeader(values=values)) == {
        "general.architecture": "llama",
        "general.name": "x" * 200,
        "llama.head_count": (8, 4),
        "llama.context_length": 4096,
        "split.count": 2,
    }
