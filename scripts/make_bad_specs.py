#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/bad_specs.json: specs that break rules of the schemas, and the whole text of each error.

Each case is one of two specs with one change. Schemas refuse neither of the two: what is wrong with them, their
section `repeat`, is found after the check against the schemas, and before the spec is resolved. The texts are those of
a droptest program: run this script with the program of a commit whose texts are right.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

LOSS = {"model": "bernoulli", "loss_rate": 0.1}
GOOD = {
    "training": {
        "name": "t",
        "seeds": {"weights": 1, "network": 18446744073709551615},
        "task": "language_modelling",
        "model": {
            **{"preset": "nano", "layers": 1, "heads": 2, "vocabulary": 256, "pretrained": "p", "sha256": "0" * 64},
            "attention": {"kind": "dilated", "branches": [{"segment": 8, "dilation": 1}], "gradient": "exact"},
        },
        "data": {
            **{"shards": ["a*"], "format": "llmc", "lost_limit": 0.5, "layout": "plain", "validation_fraction": 0.1},
            "retries": {"attempts": 2, "backoff_seconds": 0.5},
            "files": [{"file": "f", "bytes": 8, "tokens": 2, "crc32c": "0" * 8}],
        },
        "device": "cpu",
        "parallel": {"tensor": 2, "schedule": "1f1b", "sequence_kind": {"ulysses": 1, "ring": 2}, "order": ["data"]},
        "backend": {"name": "gloo", "timeout_seconds": 1, "rendezvous": {"kind": "redis", "host": "h", "port": 1}},
        "training": {
            **{"steps": 1, "batch_sequences": 1, "sequence_tokens": 8, "learning_rate": 0.1, "precision": "bfloat16"},
            **{"beta1": 0.9, "epsilon": 1e-8, "optimizer": "sgd", "layer_decay": 0.5, "gradient_norm": "own"},
            "schedule": {"kind": "table", "points": [{"step": 0, "factor": 1}]},
            "loss_scale": {"kind": "dynamic", "initial": 8, "backoff": 0.5, "flag_loss_rate": 0},
            "class_weights": {"a": 1},
            "lora": {"rank": 1, "alpha": 1, "targets": ["mlp.c_fc"]},
            "tensors": [{"match": "h.*", "frozen": True, "learning_rate_factor": 1}],
            "dropout": {"attention": 0.1},
        },
        "checkpoint": {"every_steps": 5, "keep": 2, "async": True, "on_error": "stop", "before": ["true"]},
        "start": {"manifest": "m"},
        "kernels": {"attention": "naive", "matmul": {"library": "l"}},
        "memory": {"strategy": "basic", "recompute": "none", "every": 1, "cut": False, "attention_chunk": 8},
        "restart": {"attempts": 1, "backoff_seconds": 1},
        "alerts": [{"when": "loss_spike", "threshold": 9, "do": {"command": ["c"]}}],
        "failures": {"stages": {"rate": 0.1, "replacement": "mean"}, "replicas": [{"data_rank": 1, "from": 2}]},
        "outer": {"every_steps": 2, "optimizer": "sgd", "momentum": 0.9, "quorum": 1, "grace_seconds": 1},
        "validation": {"every_steps": 1, "network": "lossy"},
        "record": {"links": "include", "weights": "none", "profile_steps": [1, 2]},
        "sweep": {
            "cross": {"/training/steps": [1, 2], "/training/weight_decay": {"linspace": [0, 1, 2]}},
            "zip": {"/model/layers": [1, 2]},
            "best_over": ["/training/steps"],
        },
        "search": {"pointer": "/network/loss/loss_rate", "low": "1%", "resolution": 0.1, "seeds": 2, "max_runs": 9},
        "repeat": {"seeds": 2, "data": 1},
    },
    "network": {
        "name": "t",
        "repeat": {"seeds": 2, "data": 1},
        "data": {"text": "t"},
        "network": {
            **{"path": "direct", "group_ranks": 2, "payload_bytes": 8, "consistency": "shared", "fill": "stale"},
            **{"burst_scope": "link", "sized_paths": [{"up_to_elements": 8, "path": "ring"}]},
            "loss": {"model": "gilbert_elliott", "p_good_to_bad": "1%", "p_bad_to_good": 0.25, "loss_good": 0},
            "links": [{"sources": [0, "1-2"], "destinations": [3], "between_groups_of": 2, "loss": LOSS}],
            "reduce": {
                **{"loss": {"model": "four_state", "p13": 0.1, "p14": 0}, "selection": "by_fate", "fill": "zero"},
                "recovery": {"parity": {"data": 8, "parity": 2, "depth": 1}, "retransmit": {"protocol": "go_back_0"}},
            },
            "gather": {"loss": {"model": "outage", "windows": [{"from_step": 1, "to_step": 2}], "otherwise": LOSS}},
            "compression": {"kind": "int8", "block": 8},
            "recovery": {
                "retransmit": {"protocol": "selective_repeat", "rounds": 2, "timeout_microseconds": 5},
                **{"interleave": 2, "hadamard": {"block": 8}, "error_feedback": True},
                "protect": {"layers": [0], "steps": {"from": 1, "until": 2}, "names": ["h.*"]},
            },
            "classes": {
                "tp_forward": {
                    **{"path": "auto", "payload_bytes": 8, "group_ranks": 2, "fill": "own", "burst_scope": "message"},
                    **{"consistency": "shared", "compression": {"kind": "top_k", "fraction": "5%"}},
                    "loss": {"model": "gilbert_elliott", "loss_rate": 0.1, "mean_burst_packets": 2},
                    "sized_paths": [{"up_to_elements": 8, "path": "tree"}],
                    "recovery": {"parity": {"data": 8, "parity": 2}},
                },
                "dp_gradient": {
                    "loss": {"model": "trace", "file": "f", "start": "random", "sha256": "0" * 64},
                    "compression": {"kind": "power_sgd", "rank": 2},
                },
                "outer": {"loss": {"model": "pattern", "every": 3, "offset": 0}},
                "tp_backward": {"loss": {"model": "pattern", "lost_packets": 1, "delivered_packets": 2, "offset": 0}},
                "pp_gradient": {
                    "loss": {
                        **{"model": "timed_gilbert_elliott", "mean_good_microseconds": 9, "mean_bad_microseconds": 1},
                        **{"gap_microseconds": 0, "loss_bad": 1},
                    }
                },
                "pp_activation": {"loss": {"model": "schedule", "phases": [{"from_step": 1, "loss": LOSS}]}},
            },
        },
        "time": {
            "link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 100},
            "groups": {"ranks": 4, "link": {"latency_microseconds": 1, "bandwidth_gbit_per_second": 800}},
            **{"header_bytes": 92, "compute_milliseconds": "measured", "deadline_microseconds": 50},
            "stragglers": {"compute_p99_over_p50": 1.5},
            "retransmission": {"protocol": "timeout", "timeout_microseconds": 5, "longest_timeout_microseconds": 9},
        },
    },
}
# Spec, pointer, value; None for the value removes the member.
BY_HAND = [
    ["network", "", []],
    ["network", "/name", "../up"],
    ["network", "/name", "n" * 101],
    ["network", "/data", {}],
    ["network", "/data", {"text": "a", "tokens": "b"}],
    ["network", "/repeat", {"seeds": 0}],
    ["network", "/repeat", {"seed": 2}],
    ["network", "/seed", -1],
    ["network", "/seed", 18446744073709551616],
    ["network", "/seed", 1.5],
    ["network", "/training", {"precision": "bf17", "schedule": "wsd"}],
    ["network", "/device", "gpu"],
    ["network", "/task", "lm"],
    ["network", "/network/loss", {"model": "bernouli", "loss_rate": 0.1}],
    ["network", "/network/loss", {"loss_rate": 0.1}],
    ["network", "/network/loss", {"model": "gilbert_elliott"}],
    ["network", "/network/loss", {"model": "gilbert_elliott", "loss_rate": "200%", "mean_burst_packets": 0}],
    ["network", "/network/loss/p_good_to_bad", "5 %"],
    ["network", "/network/classes/control", {}],
    ["network", "/network/classes/tp_forwards", {}],
    ["network", "/network/recovery/error_feedback", "ef22"],
    ["network", "/time/compute_milliseconds", "mesured"],
    ["network", "/sweep", {"cross": {"/network/los": [1]}}],
    ["network", "/sweep", {"cross": {"/network/loss/rate": [1]}}],
    ["network", "/sweep", {"cross": {"/network/classes/tp_forward/reduce/fil": [1]}}],
    ["network", "/sweep", {"cross": {"/network/classes/tp_forward/recovery/parity/dat": [1]}}],
    ["network", "/sweep", {"cross": {"/network/payload_bytes/x": [1]}}],
    ["network", "/sweep", {"cross": {"/time/link/latency": [1]}}],
    ["network", "/sweep", {"cross": {"/parallel/tensors": [1]}}],
    ["network", "/sweep", {"cross": {"steps": [1]}, "zip": {"/training/steps": []}}],
    ["network", "/sweep", {"cross": {"/training/steps": {"linspace": [1, 2]}}}],
]


def places(value, pointer=""):
    """(pointer, value) of all members, lists by their first item."""
    members = value.items() if isinstance(value, dict) else [("0", value[0])] if isinstance(value, list) else []
    for name, member in members:
        inner = pointer + "/" + name.replace("~", "~0").replace("/", "~1")
        yield inner, member
        yield from places(member, inner)


def wrong_values(value, turn: int) -> list:
    """Values in the place of `value` that its rule may refuse, each `turn` another one first; None removes it."""
    if isinstance(value, bool):
        wrong = ["yes", 0]
    elif isinstance(value, int | float):
        wrong = [-1.5, "many", 1e300, {}]
    elif isinstance(value, str):
        wrong = [value[:-1] + "x", 7, value + "s", None]
    elif isinstance(value, list):
        wrong = [[], [[]], {"a": 1}, [None]]
    else:
        first = next(iter(value))
        wrong = [{**value, first[:-1]: 1}, {**value, "extra": 1}, 3, None]
    first = turn % len(wrong)
    return wrong[first:] + wrong[:first]


def changed(document, pointer: str, value):
    """The document with another value at `pointer`; None removes it."""
    if not pointer:
        return value
    document = json.loads(json.dumps(document))  # shares no part with another
    *path, last = [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]
    parent = document
    for token in path:
        parent = parent[int(token) if isinstance(parent, list) else token]
    if isinstance(parent, list):
        parent[int(last)] = value
    elif value is None:
        parent.pop(last)
    else:
        parent[last] = value
    return document


def errors_of(program: Path, documents: list) -> list[str]:
    """What `droptest validate` says about each document, "" for a good one; lines begin with pointers."""
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{i:04}.json" for i in range(len(documents))]
        for name, document in zip(names, documents, strict=True):
            (Path(folder) / name).write_text(json.dumps(document))
        command = [program, "validate", "--spec-only", *names]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    lines = {name: [] for name in names}
    for line in ran.stderr.splitlines():
        kind, name, text = line.removeprefix("droptest: ").split(": ", 2)
        if kind == "error":
            lines[name].append(text)
    return ["\n".join(lines[name]) for name in names]


def lines_of(program: Path) -> list[str]:
    own_errors = dict(zip(GOOD, errors_of(program, list(GOOD.values())), strict=True))
    tries = [[case] for case in BY_HAND]
    for name, good in GOOD.items():
        for turn, (pointer, value) in enumerate(places(good)):
            if not pointer.startswith("/repeat") and (not isinstance(value, list) or name == "network"):
                tries.append([[name, pointer, wrong] for wrong in wrong_values(value, turn)])
    documents = [changed(GOOD[name], pointer, value) for cases in tries for name, pointer, value in cases]
    errors = iter(errors_of(program, documents))
    lines = []
    for cases in tries:
        refused = [(case, error) for case in cases if (error := next(errors)) not in ("", own_errors[case[0]])]
        for (name, pointer, value), error in refused[:1]:
            lines.append(json.dumps({"spec": name, "pointer": pointer, "value": value, "error": error}))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="the droptest command of a build")
    program = parser.parse_args().program.resolve()
    origin = "scripts/make_bad_specs.py: texts of `droptest validate --spec-only`"
    specs = ",\n".join(f'"{name}": {json.dumps(good)}' for name, good in GOOD.items())
    cases = ",\n".join(lines_of(program))
    text = json.dumps({"origin": origin})[:-1] + ', "specs": {\n' + specs + '}, "cases": [\n' + cases + "\n]}\n"
    path = Path(__file__).resolve().parent.parent / "tests" / "vectors" / "bad_specs.json"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
