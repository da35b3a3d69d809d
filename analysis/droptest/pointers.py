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


WHOLE = None  # in a tree of pointers: the member with everything in it


def without(spec: dict[str, Any], pointers: Iterable[str]) -> dict[str, Any]:
    """The spec without the values at these pointers, and without objects that have no other members.

    "*" stands for each entry of a list. The spec itself stays as it is.
    """
    tree: dict[str, Any] = {}
    for pointer in pointers:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]] or [""]
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
            if node is WHOLE:
                break
        else:
            node[last] = WHOLE
    return _without(spec, tree)


def _without(value: Any, tree: dict[str, Any]) -> Any:
    if isinstance(value, list):
        of_each = tree.get("*") or {}
        return [_without(_without(entry, of_each), tree.get(str(i)) or {}) for i, entry in enumerate(value)]
    if not isinstance(value, dict) or not tree:
        return value
    found = {}
    for key, member in value.items():
        inner = tree.get(key, {})
        if inner is WHOLE:
            continue
        rest = _without(member, inner) if inner else member
        if rest != {} or not inner:
            found[key] = rest
    return found


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
