"""Markup without the white space that does not render, so that tests do not depend on how templates are laid out."""

import re


def compact(markup: bytes | str) -> str:
    """Return `markup` with white space collapsed, and none beside a tag."""
    text = markup.decode() if isinstance(markup, bytes) else markup
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r" ?(<[^>]*>) ?", r"\1", text)
    return re.sub(r" (/?>)", r"\1", text)
