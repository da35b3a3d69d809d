# SPDX-License-Identifier: Apache-2.0
"""JSON pointers into resolved specs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def canonical(value: Any) -> str:
    """JSON with sorted keys: equal text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def within(pointer: str, parent: str) -> bool:
    """Whether a pointer is equal to another, or points inside its value."""
    return f"{pointer}/".startswith(f"{parent}/")


def without(spec: dict[str, Any], pointers: Iterable[str]) -> dict[str, Any]:
    """The spec without the values at these pointers, and without objects that have no other members.

    The spec itself stays as it is.
    """
    for pointer in pointers:
        spec = _without(spec, [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]])
    return spec


def _without(value: Any, parts: list[str]) -> Any:
    first, *rest = parts
    if isinstance(value, list):
        if not rest or not first.isdigit() or int(first) >= len(value):
            return value
        return [_without(entry, rest) if i == int(first) else entry for i, entry in enumerate(value)]
    if not isinstance(value, dict) or first not in value:
        return value
    inner = _without(value[first], rest) if rest else {}
    others = {key: member for key, member in value.items() if key != first}
    return {**others, first: inner} if inner != {} else others


def short_names(pointers: list[str]) -> dict[str, str]:
    """A name for each pointer: the last parts of it, as few as no other pointer ends with.

    sweep.json has such names for the pointers of a sweep; these are for the members inside of swept values, too.
    """
    names = {}
    for pointer in pointers:
        parts = pointer.split("/")[1:]
        ends = ("/".join(parts[-count:]) for count in range(1, len(parts) + 1))
        others = [other for other in pointers if other != pointer]
        names[pointer] = next((end for end in ends if not any(o.endswith(f"/{end}") for o in others)), pointer)
    return names
