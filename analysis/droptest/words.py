# SPDX-License-Identifier: Apache-2.0
"""Words for the identifiers of specs and records, as figures and tables show them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

CLASSES = {
    "tp_forward": "tensor parallel, forward",
    "tp_backward": "tensor parallel, backward",
    "tp_recomputation": "tensor parallel, recomputation",
    "dp_gradient": "data parallel, gradients",
    "parameter_gather": "ZeRO, parameters",
    "pp_activation": "pipeline, activations",
    "pp_gradient": "pipeline, gradients",
    "embedding_gradient": "tied embedding, gradients",
    "sequence_forward": "sequence parallel, forward",
    "sequence_backward": "sequence parallel, backward",
    "outer": "outer steps",
}
HALVES = {"reduce": "reduce half", "gather": "gather half", "both": "both halves"}
SPELLED = {"go_back_n": "go-back-N"}
IDENTIFIER = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")


def spoken(text: str) -> str:
    """An identifier in words: "selective repeat" for selective_repeat; any other text as it is."""
    return CLASSES.get(text) or SPELLED.get(text) or (text.replace("_", " ") if IDENTIFIER.fullmatch(text) else text)


def either(texts: Iterable[str]) -> str:
    """ "1, 2 or 3"."""
    *others, last = texts
    return f"{', '.join(others)} or {last}" if others else last


MOST_IN_DIGITS = 1e6


def decimal(value: float, digits: int = 4, sign: str = "") -> str:
    """A finite number with so many decimals; from a million on, where only losses of diverged runs are, with an
    exponent. sign: "+": before positive numbers, too."""
    return f"{value:{sign}.{digits}{'f' if abs(value) < MOST_IN_DIGITS else 'e'}}"


def shared_head(names: Iterable[str], width: int) -> str:
    """What all names of several parts begin with, "Gilbert-Elliott, burst 4, "; "" if none has more than `width`
    characters. Names of runs without loss have no loss process, and do not count."""
    every = [name.split(", ") for name in names if ", " in name and not name.startswith("lossless, ")]
    if len(every) < 2 or max(len(", ".join(parts)) for parts in every) <= width:
        return ""
    first, last = min(every), max(every)
    alike = [a == b for a, b in zip(first[:-1], last[:-1], strict=False)]
    count = alike.index(False) if False in alike else len(alike)
    return "".join(f"{part}, " for part in first[:count])


def shortened(names: Iterable[str], width: int, head: str = "") -> list[str]:
    """Names of at most `width` characters, which are as distinct as the names: `head` is left out, long ones are cut in
    the middle, and numbered where that leaves equal ones."""
    found: dict[str, None] = {}  # in order
    next_numbers: dict[tuple[str, int], int] = {}  # by ends and digits: all smaller ones are in use
    for name in names:
        name = f"… {name.removeprefix(head)}" if head and name.startswith(head) else name
        short, digits = cut(name, width), 1
        while short in found:
            ends = cut(name, width - len(" ()") - digits)
            number = next_numbers.get((ends, digits), max(2, 10 ** (digits - 1)))
            if number < 10**digits:
                short = f"{ends} ({number})"
                next_numbers[ends, digits] = number + 1
            else:
                digits += 1
        found[short] = None
    return list(found)


def cut(name: str, width: int) -> str:
    """The ends of a name that is longer than `width` characters."""
    if len(name) <= width:
        return name
    behind = (width - 1) // 3
    return f"{name[: width - 1 - behind]}…{name[len(name) - behind :]}"


def unit_of(specs: Iterable[dict[str, Any]]) -> str:
    """The unit of the losses of runs with these specs: the one that all programs name, per byte where every run trains
    on the bytes of a text, per example where every run classifies."""
    specs = list(specs)
    named = {spec["unit"] for spec in specs if isinstance(spec.get("unit"), str)}
    if len(named) == 1 and all("unit" in spec for spec in specs):
        return named.pop()
    data = [spec["data"] for spec in specs if isinstance(spec.get("data"), dict)]
    if data and all("examples" in d for d in data):
        return "nats per example"
    return "nats per byte" if data and all("text" in d for d in data) else "nats per token"
