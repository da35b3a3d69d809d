#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/grad_scaler.json: loss scales over 10,000 steps by PyTorch's algorithm.

The update is that of torch.amp.GradScaler.update(), as its documentation and torch._amp_update_scale_ define it;
PyTorch itself is not needed. The scale is a float32: numbers are rounded to it by struct. droptest's C++ takes no part.
"""

import argparse
import json
import math
import random
import struct
from pathlib import Path

STEPS = 10_000
CASES = [
    # growth, backoff, interval, probability of an overflow
    {"initial": 65536.0, "growth": 2.0, "backoff": 0.5, "interval": 2000, "rate": 0.0004},
    {"initial": 65536.0, "growth": 2.0, "backoff": 0.5, "interval": 7, "rate": 0.1},
    {"initial": 1000.0, "growth": 1.7, "backoff": 0.3, "interval": 20, "rate": 0.02},
    {"initial": 2.0**120, "growth": 4.0, "backoff": 0.25, "interval": 100, "rate": 0.001},
]


def float32(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.inf


def scales(case: dict, overflows: set[int]) -> list[list]:
    """[step, scale after it] of each step that changes the scale; steps count from 1."""
    scale, tracker, changes = float32(case["initial"]), 0, []
    for step in range(1, STEPS + 1):
        before = scale
        if step in overflows:
            scale, tracker = float32(scale * case["backoff"]), 0
        elif tracker + 1 == case["interval"]:
            grown, tracker = float32(scale * case["growth"]), 0
            scale = grown if math.isfinite(grown) else scale
        else:
            tracker += 1
        if scale != before:
            changes.append([step, scale])
    return changes


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    draw = random.Random(16)
    cases = []
    for case in CASES:
        overflows = {step for step in range(1, STEPS + 1) if draw.random() < case["rate"]}
        settings = {name: case[name] for name in ("initial", "growth", "backoff", "interval")}
        cases.append(settings | {"overflows": sorted(overflows), "changes": scales(case, overflows)})
    lines = [json.dumps(case) for case in cases]
    origin = "scripts/make_grad_scaler_vectors.py: PyTorch's GradScaler.update(), reimplemented in Python"
    text = json.dumps({"origin": origin, "steps": STEPS})[:-1] + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n"
    path = Path(__file__).parent.parent / "tests" / "vectors" / "grad_scaler.json"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
