"""Removal of secrets from text that is written to a log or shown."""

import re
from collections.abc import Iterable

MASK = "***"
SHORTEST_KNOWN_SECRET = 4
"""Characters of the shortest known value that is masked: a shorter one would mask ordinary text."""

_NAMES = r"password|passphrase|passwd|token|secret|api[_\- ]?key"
_SPACE = r"(?:\s|\\[tn])"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL), MASK),
    (re.compile(r"(?<![A-Za-z0-9])(?:ssk_|hf_|mbt_)[A-Za-z0-9_\-]{4,}"), MASK),
    # `name=value` and `"name": "value"`, whatever the value is, also inside a JSON string.
    (
        re.compile(
            rf"""(?i)(?<![a-z0-9])((?:{_NAMES})\\{{0,3}}["']?{_SPACE}*[=:]{_SPACE}*)"""
            r"""(\\{1,3}"[^"\\]*\\{1,3}"|"[^"]*"|'[^']*'|\\{0,3}["']?[^\s,;&"']+)"""
        ),
        rf"\1{MASK}",
    ),
    # `name value`, where the value does not read as a word.
    (re.compile(rf"""(?i)(?<![a-z0-9])((?:{_NAMES}){_SPACE}+)(?=[^\s,;&"']*\d)[^\s,;&"']{{12,}}"""), rf"\1{MASK}"),
    (
        re.compile(rf"(?i)(?<![a-z0-9])(bearer(?:{_SPACE}*[=:]{_SPACE}*|{_SPACE}+))[A-Za-z0-9._~+/=\-]{{8,}}"),
        rf"\1{MASK}",
    ),
    # A long run of base64url is a secret or a key until shown otherwise; hex digests (SPKI, sha256) are not.
    (re.compile(r"(?<![A-Za-z0-9_\-])(?![0-9a-f]+(?![A-Za-z0-9_\-]))[A-Za-z0-9_\-]{40,}(?![A-Za-z0-9_\-])"), MASK),
)


_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]+-----")
_END = re.compile(r"-----END [A-Z0-9 ]+-----")
_BETWEEN = re.compile(r"(?:Proc-Type|DEK-Info|Comment|Version): .*|")
_BODY = re.compile(r"[A-Za-z0-9+/]{1,76}={0,2}")
_HEX = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_FULL = (64, 70, 76)
"""Characters of a line of PEM, OpenSSH and MIME."""
_SHORTEST_FIRST = 40
"""Characters of the first line of a block that holds a key."""


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` with PEM blocks, keys, tokens, passwords, long base64url runs and `secrets` masked.

    Linear in the length of `text`.
    """
    for secret in secrets:
        if len(secret) >= SHORTEST_KNOWN_SECRET:
            text = text.replace(secret, MASK)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def redact_lines(lines: Iterable[str], secrets: Iterable[str] = ()) -> list[str]:
    """Return `lines` as `redact` would, line by line, and without a key or certificate that runs over several lines.

    The number of lines stays. Text before the block on its lines, such as a time, stays, too.
    """
    known, shortest, found = (
        tuple(secrets),
        0,
        [],
    )  # `shortest`: of a line that goes on with the block; 0 outside of one
    for line in lines:
        ahead, token = _last_word(line)
        if _END.search(line):
            shortest, shown = 0, MASK
        elif _BEGIN.search(line):
            shortest, shown = _SHORTEST_FIRST, redact(line, known)
        elif _is_full(token):
            shortest, shown = 1, redact(ahead, known) + MASK
        elif shortest and len(token) >= shortest and _BODY.fullmatch(token):
            shortest, shown = 0, redact(ahead, known) + MASK  # the last line of a block is a short one
        else:
            shortest = shortest if _BETWEEN.fullmatch(line.strip()) else 0
            shown = redact(line, known)
        found.append(shown)
    return found


def _last_word(line: str) -> tuple[str, str]:
    text = line.rstrip()
    start = max(text.rfind(" "), text.rfind("\t")) + 1
    return text[:start], text[start:]


def _is_full(token: str) -> bool:
    return len(token) in _FULL and _BODY.fullmatch(token) is not None and _HEX.fullmatch(token) is None
