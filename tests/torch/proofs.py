# SPDX-License-Identifier: Apache-2.0
"""What tests say of the trainings and calls that they have tried, for the tables of docs/pytorch.md."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

PROPERTY = "proof"  # of a test in pytest's JUnit file; scripts/tested_torch.py reads it


def note(record_property: Callable[[str, str], None], name: str, by: str, classes: Iterable[Mapping[str, Any]],
         rate: float | None = None) -> None:  # fmt: skip
    """Notes the packets of the classes, and z of what they have lost. by: "hook", "backend" or "calls". rate: of the
    losses; absent: each class has its configured_rate."""
    packets, deviation, variance = 0, 0.0, 0.0
    for counts in classes:
        expected = counts["configured_rate"] if rate is None else rate
        packets += counts["packets"]
        deviation += counts["lost"] - expected * counts["packets"]
        variance += expected * (1 - expected) * counts["packets"]
    record_property(PROPERTY, json.dumps({"name": name, "by": by, "packets": packets,
                                          "z": deviation / math.sqrt(variance)}))  # fmt: skip
