# SPDX-License-Identifier: Apache-2.0
"""Python objects as the JSON texts that the droptest command and the library read, and values of JSON texts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

_MAX_DEPTH = 64  # of what the command reads


class UnusableValue(ValueError):
    """A value that JSON does not have; the message begins with its pointer."""


def json_text(value: Any, pointer: str = "") -> str:
    """The JSON text of a value in which lists, texts and numbers may be numpy's (or pandas' or PyTorch's), and paths
    stand for their names. A member of an enumeration of texts or numbers stands for its value, as any object of a
    class derived from theirs. pointer: of the value, for messages.

    A number keeps its value exactly: numpy.float32(0.1) is 0.10000000149011612. Raises: UnusableValue for any other
    value, a number that is not finite, a text that is not UTF-8, and a key that is no text.
    """
    return json.dumps(_plain(value, pointer, 0), allow_nan=False)


def _plain(value: Any, pointer: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise UnusableValue(f"{pointer[:60]}...: nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, os.PathLike) and isinstance(os.fspath(value), str):
        value = os.fspath(value)
    if isinstance(value, str):
        return _text(value, pointer)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UnusableValue(f"{pointer or 'the value'}: got {float.__repr__(value)}, want a finite number")
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_key(key, pointer): _plain(member, f"{pointer}/{_escaped(key)}", depth + 1)
                for key, member in value.items()}  # fmt: skip
    if isinstance(value, list | tuple):
        return [_plain(entry, f"{pointer}/{place}", depth + 1) for place, entry in enumerate(value)]
    if callable(getattr(value, "tolist", None)):
        inner = value.tolist()
        if isinstance(inner, str | bool | int | float | list):
            return _plain(inner, pointer, depth)
    raise UnusableValue(
        f"{pointer or 'the value'}: got {_shown(value)}, want an object, a list, an array, a text, a path, a number, a "
        "boolean or None"
    )


def _text(value: str, pointer: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UnusableValue(f"{pointer or 'the value'}: got {_shown(value)}, want a text that is UTF-8") from None
    return str.__str__(value)


def _key(key: Any, pointer: str) -> str:
    if not isinstance(key, str):
        raise UnusableValue(f"{pointer or 'the object'}: got the key {_shown(key)}, want a text")
    return _text(key, pointer)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def object_of(value: Any) -> dict[str, Any]:
    """`value` where it is an object, an empty one where it is anything else."""
    return value if isinstance(value, dict) else {}
