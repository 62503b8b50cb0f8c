# SPDX-License-Identifier: Apache-2.0
"""A JSON schema of definitions, for editors that complete and check TOML: docs/flow.schema.json."""

from __future__ import annotations

import json
from typing import Any

from wptrace.engine.definition import keys
from wptrace.engine.definition.keys import Key

_TEXT: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": keys.TEXT_LENGTH}


def _anchored(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


def _one_or_more(one: dict[str, Any], most: int) -> dict[str, Any]:
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "maxItems": most}]}


def _line() -> dict[str, Any]:
    return {"type": "string", "maxLength": keys.LINE_LENGTH}


def _value(key: Key) -> dict[str, Any]:
    parts = _one_or_more(_TEXT, keys.MAX_PARTS)
    noun = {**_line(), "pattern": r"\S"}
    plain: dict[str, dict[str, Any]] = {
        keys.NAME: _anchored(keys.NAME_PATTERN),
        keys.LETTER: _anchored("[A-Za-z0-9]"),
        keys.LINE: _line(),
        keys.FLAG: {"type": "boolean"},
        keys.CHOICE: {"enum": list(key.choices)},
        keys.EXPRESSION: _TEXT,
        keys.COMPARISON: _TEXT,
        keys.COMPARISONS: _one_or_more(_TEXT, key.most),
        keys.TARGETS: _one_or_more(_anchored(keys.TARGET_PATTERN), key.most),
        keys.PARTS: parts,
        keys.WAYS: _one_or_more(parts, key.most),
        keys.WORDS: _one_or_more(_anchored(keys.WORD_PATTERN), key.most),
        keys.NOUN: {"anyOf": [noun, {"type": "array", "items": noun, "minItems": 2, "maxItems": 2}]},
    }
    if key.kind == keys.LABELS:
        return _one_or_more({"anyOf": [_TEXT, _table(keys.LABEL)]}, key.most)
    if key.kind == keys.POINTS:
        return {"type": "array", "items": _table(keys.POINT), "minItems": 2, "maxItems": key.most}
    return plain[key.kind]


def _table(known: tuple[Key, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {key.name: {"description": key.about, **_value(key)} for key in known},
        "required": [key.name for key in known if key.required],
        "additionalProperties": False,
    }


def schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A flow by definition for wptrace",
        **_table(keys.DEFINITION),
    }


def text() -> str:
    """The schema as it is in docs."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
