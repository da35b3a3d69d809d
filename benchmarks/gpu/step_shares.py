# SPDX-License-Identifier: Apache-2.0
"""Where the time of a training step on a GPU goes, in two ways that do not depend on each other.

Measured: events on the device before and after each phase, from the trace of a run (docs/profiling.md).
Multiplied: the time of each kernel by itself (device_rates) x its calls in a step.
"""

import math
from collections import defaultdict

FIRST_DEVICE_TRACK = 2  # of a rank in trace.json; the tracks before are the host's


class UnequalCalls(Exception):
    """device_rates counts other calls of a phase than the trace has."""


def measured(trace: dict, rank: int = 0) -> dict:
    """Milliseconds and spans of a step on the rank's device: each phase, and the messages of each traffic class."""
    events = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == rank]
    steps = sum(e["cat"] == "step" for e in events)
    found: dict = {"steps": steps, "phases": {}, "messages": {}}
    for event in events:
        if event["tid"] % 1000 < FIRST_DEVICE_TRACK:
            continue
        is_message = event["cat"] == "communication"
        name = event["args"]["class"] if is_message else event["name"]
        entry = found["messages" if is_message else "phases"].setdefault(name, {"milliseconds": 0.0, "spans": 0})
        entry["milliseconds"] += event["dur"] / 1e3
        entry["spans"] += 1
    for entry in (*found["phases"].values(), *found["messages"].values()):
        entry["milliseconds"] /= steps
        entry["spans"] /= steps
    return found


def used(kernels: list[dict], attention: str) -> list[dict]:
    """Those that a step with this kernel of attention calls."""
    return [k for k in kernels if "calls" in k and k.get("attention", attention) == attention]


def multiplied(kernels: list[dict], step_milliseconds: float, attention: str) -> dict:
    """The groups of kernels in a step: time by itself x calls, and the share of the step. The remainder is the rest of
    the step."""
    groups: dict[str, float] = defaultdict(float)
    phases: dict[str, float] = defaultdict(float)
    for kernel in used(kernels, attention):
        milliseconds = kernel["calls"] * kernel["microseconds"] / 1e3
        groups[kernel["group"]] += milliseconds
        phases[kernel["phase"]] += milliseconds
    rest = step_milliseconds - sum(groups.values())
    rows = {**dict(sorted(groups.items(), key=lambda item: -item[1])), "remainder": rest}
    return {
        "step_milliseconds": step_milliseconds,
        "groups": {name: {"milliseconds": ms, "share": ms / step_milliseconds} for name, ms in rows.items()},
        "phases": dict(phases),
    }


def check_calls(kernels: list[dict], attention: str, phases: dict) -> None:
    """Raises: UnequalCalls where a phase has another number of calls by device_rates than in the trace: then the table
    of kernels is not that of the step."""
    calls: dict[str, int] = defaultdict(int)
    for kernel in used(kernels, attention):
        if not kernel.get("difference"):  # is a part of another call
            calls[kernel["phase"]] += math.ceil(kernel["calls"])
    unequal = [
        f"{phase}: {calls.get(phase, 0)} by device_rates, {phases.get(phase, {'spans': 0})['spans']:g} in the trace"
        for phase in sorted(calls.keys() | phases.keys())
        if calls.get(phase, 0) != phases.get(phase, {"spans": 0})["spans"]
    ]
    if unequal:
        raise UnequalCalls("calls in a step: " + "; ".join(unequal))
