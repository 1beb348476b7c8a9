"""Inline icons: the strokes of Lucide, read once from the sheet beside this file."""

import re
from functools import cache
from pathlib import Path

_SHEET = Path(__file__).with_name("lucide.svg")
_SYMBOL = re.compile(r'<symbol id="([a-z0-9-]+)"[^>]*>(.*?)</symbol>', re.DOTALL)


@cache
def strokes() -> dict[str, str]:
    """Return the inner markup of the icons by name."""
    return dict(_SYMBOL.findall(_SHEET.read_text()))
