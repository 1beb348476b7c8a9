"""Takes secrets out of text that will be written or shown."""

import re

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL), "***"),
    (re.compile(r"\b(?:ssk_|hf_|mbt_)[A-Za-z0-9_\-]{4,}"), "***"),
    (
        re.compile(
            r"""(?ix)\b((?:[a-z0-9]+[_\-])*(?:password|passphrase|passwd|token|secret|api[_\-]?key)["']?\s*[=:]\s*)"""
            r"""("[^"]*"|'[^']*'|[^\s,;&"']+)"""
        ),
        r"\1***",
    ),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=\-]{8,}"), r"\1***"),
    # A long run of base64url is a secret or a key until shown otherwise; hex digests (SPKI, sha256) are not.
    (re.compile(r"(?<![A-Za-z0-9_\-])(?![0-9a-f]+(?![A-Za-z0-9_\-]))[A-Za-z0-9_\-]{40,}(?![A-Za-z0-9_\-])"), "***"),
)


def redact(text: str) -> str:
    """`text` with PEM blocks, keys, tokens, passwords and long base64url runs replaced by ``***``."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
