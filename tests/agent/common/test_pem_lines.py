"""A key that a program logs over several lines: no line of it is shown, however the log is read."""

import base64
import secrets

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from agent.common.redaction import MASK, redact_lines
from agent.logs import LogFile

pytestmark = pytest.mark.unit


def pem(key, form=serialization.PrivateFormat.PKCS8):
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


KEYS = {
    "rsa": pem(rsa.generate_private_key(65537, 2048)),
    "rsa, traditional": pem(rsa.generate_private_key(65537, 2048), serialization.PrivateFormat.TraditionalOpenSSL),
    "ec": pem(ec.generate_private_key(ec.SECP256R1())),
    "ed25519": pem(ed25519.Ed25519PrivateKey.generate()),
    "openssh": pem(ed25519.Ed25519PrivateKey.generate(), serialization.PrivateFormat.OpenSSH),
    "mime": "-----BEGIN DATA-----\n" + base64.encodebytes(secrets.token_bytes(300)).decode() + "-----END DATA-----\n",
}
PREFIXES = ["", "  ", "2026-03-01T12:00:00Z INFO ", "(EngineCore pid=12) ", "\t"]


def body(text):
    return [line for line in text.splitlines() if line and "-----" not in line]


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_no_line_of_a_key_is_shown_and_the_lines_around_it_are(key, prefix, end, tmp_path):
    lines = ["loading the model", *(prefix + line for line in key.splitlines()), prefix + "listening on 8000", "ready"]
    log = LogFile(tmp_path / "x.log")
    log.path.write_bytes((end.join(lines) + end).encode())
    shown = list(log.tail(1000).lines)
    assert len(shown) == len(lines)
    assert (shown[0], shown[-2:]) == (lines[0], lines[-2:])
    assert not [line for line in body(key) for text in shown if line in text]
    assert sum(MASK in line for line in shown) == len(key.splitlines())


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_reader_that_follows_line_by_line_sees_none_of_it_either(key, tmp_path):
    log = LogFile(tmp_path / "x.log")
    log.path.write_text("before\n" + key + "after\n")
    shown, place = [], 0
    while place < log.end():
        part = log.after(place, 1)
        shown += part.lines
        place = part.next
    assert (shown[0], shown[-1]) == ("before", "after")
    assert not [line for line in body(key) for text in shown if line in text]


ORDINARY = [
    "expected -----BEGIN CERTIFICATE----- in ca.pem", "model loaded", "done", "",
    "3f5e" * 16, f"sha256:{'ab' * 32}", "/usr/lib/python3/dist-packages/transformers/models/llama",
    "tokens per second: 41.2", "GET /v1/models HTTP/1.1",
]  # fmt: skip


def test_ordinary_lines_stay_as_they_are():
    shown = redact_lines(ORDINARY)
    assert shown[0].startswith("expected ***")
    assert shown[1:] == ORDINARY[1:]


def test_known_secrets_are_masked_beside_a_block():
    assert redact_lines(["the hunter22 of", "A" * 64, "hunter22 x"], ["hunter22"]) == ["the *** of", MASK, "*** x"]


def test_known_secrets_are_masked_on_the_lines_of_a_block_too():
    secret = "hunter22 pw"
    lines = [
        f"{secret} -----BEGIN PRIVATE KEY-----", f"{secret} {'Q' * 64}", f"{secret} {'B' * 8}==",
        f"{secret} -----END PRIVATE KEY-----", f"{secret} after",
    ]  # fmt: skip
    shown = redact_lines(lines, [secret])
    assert shown == ["*** ***", "*** ***", "*** ***", MASK, "*** after"]


@pytest.mark.parametrize("last", ["A", "AB==", "A" * 40])
def test_the_short_last_line_of_a_block_without_its_end_is_masked(last):
    assert redact_lines(["x " + "Q" * 64, "x " + last, "x " + "words"]) == [f"x {MASK}", f"x {MASK}", "x words"]


def test_a_prefix_of_a_line_of_a_block_may_hold_tabs_and_spaces():
    line = "Ab/+" * 16  # which only its place in a block gives away
    for prefix in ("a\tb\t", "a b\tc ", "a b\tc d\t", "a\tb c\td "):
        assert redact_lines([prefix + line]) == [prefix + MASK]
    assert redact_lines([f"a\tb\t{'Q' * 64}", f"a b\tc {'Q' * 64}"]) == [f"a\tb\t{MASK}", f"a b\tc {MASK}"]


def test_spaces_behind_a_line_of_a_block_hide_nothing():
    line = "Ab/+" * 16
    assert redact_lines([f"x {line}  ", f"{line}\t", f"{line} \r"]) == [f"x {MASK}", MASK, MASK]


SHORT = "Ab/+" * 10  # a key of one line; shorter than a full line, so only the lines before it tell what it is


@pytest.mark.parametrize("between", [[], [""], ["Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-256-CBC,00", " "]])
def test_a_first_line_may_be_short_and_follow_the_headers_of_its_block(between):
    lines = ["-----BEGIN EC PRIVATE KEY-----", *between, f"x {SHORT}"]
    assert redact_lines(lines) == [MASK, *between, f"x {MASK}"]


@pytest.mark.parametrize("before", [[], ["-----BEGIN EC PRIVATE KEY-----", "done"], ["Ab/+" * 16, "AB==", ""]])
def test_a_word_outside_of_a_block_stays(before):
    assert redact_lines([*before, f"x {SHORT}"])[-1] == f"x {SHORT}"


def test_a_first_line_is_no_shorter_than_any_key():
    assert redact_lines(["-----BEGIN EC PRIVATE KEY-----", SHORT[:39]])[1] == SHORT[:39]
