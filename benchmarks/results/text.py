"""Summaries as text: JSON with stable order, short numbers, and one line for each array, so that changes are small."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Significant digits of a number: more than any table shows.
DIGITS = 6
_INDENT = "  "


def rounded(value: Any) -> Any:
    """The value with all floats rounded to `DIGITS` significant digits; whole numbers stay whole."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value


def to_text(document: Mapping[str, Any]) -> str:
    """The document as JSON: every entry of an object, and every list without lists in it, is a line."""
    return _text(rounded(document), "") + "\n"


def _text(value: Any, indent: str) -> str:
    deeper = indent + _INDENT
    if isinstance(value, dict) and value:
        entries = [f"{deeper}{json.dumps(key)}: {_text(item, deeper)}" for key, item in value.items()]
        return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, list) for item in value):
        return "[\n" + ",\n".join(deeper + _text(item, deeper) for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
