# SPDX-License-Identifier: Apache-2.0
"""The program's own interpreter of the schemas and Python's jsonschema find the same documents valid."""

import copy
import json
import os
import random
import subprocess
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["spec", "resolved_spec", "metrics", "loss_statistics", "summary", "sweep", "search", "diagnostics", "shards",
         "predictions"]  # fmt: skip


def program():
    binary = os.environ.get("DROPTEST_BINARY")
    if not binary:
        pytest.skip("DROPTEST_BINARY does not name the droptest command of a build")
    checker = Path(binary).resolve().parents[1] / "tests" / "experiments" / "droptest_schema_check"
    if not checker.exists():
        pytest.skip(f"{checker} was not built")
    return checker


def printed_schema(name):
    command = [os.environ["DROPTEST_BINARY"], "schema", name]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout)


def validators():
    """Of each schema as it is printed, without the others."""
    result = {}
    for name in NAMES:
        schema = printed_schema(name)
        jsonschema.Draft202012Validator.check_schema(schema)
        result[name] = jsonschema.Draft202012Validator(schema)
    return result


HALF_COUNTS = {
    **{key: 3 for key in ("messages", "packets", "bytes", "lost", "lost_bytes")},
    **{key: 0.25 for key in ("configured_rate", "realised_rate", "z", "mean_burst_packets")},
    "configured_mean_burst_packets": 1.5,
}
HALF = {**HALF_COUNTS, "loss": "none", "fill": "zero", "burst_histogram": [{"length": 1, "count": 2, "expected": None}]}
CLASS = {
    **HALF_COUNTS,
    **{key: 2 for key in ("collectives", "sampled_calls")},
    **{key: 0.5 for key in ("untouched_share", "nmse", "cosine", "divergence_max", "divergence_rms")},
    "digest": "0123456789abcdef",
    "path": "direct",
    "halves": {"reduce": HALF, "gather": HALF},
}
LINK = {
    "class": "tp_forward",
    "half": "reduce",
    "source": 0,
    "destination": None,
    **{key: 3 for key in ("packets", "lost")},
    **{key: 0.25 for key in ("realised_rate", "z", "mean_burst_packets")},
    "digest": "0123456789abcdef",
}
LOSS = {"model": "bernoulli", "loss_rate": 0.25, "mean_burst_packets": 1.5}
EVERYTHING = json.loads((ROOT / "tests" / "fuzz" / "seeds" / "fuzz_spec" / "everything.json").read_text())
RESOLVED = {
    "name": "t",
    "description": "",
    "seeds": {"weights": 1, "data": 2, "network": 18446744073709551615},
    "model": {"layers": 4, "width": 128, "heads": 4, "context": 128, "vocabulary": 256},
    "kernels": {"attention": {"library": "a.so", "sha256": "0" * 64}, "matmul": "eigen"},
    "numerics_version": 1,
    "data": {"text": "a", "sha256": "01234567" * 8, "validation_fraction": 0.1},
    "device": "cuda",
    "parallel": {"tensor": 2},
    "backend": {"name": "local", "timeout_seconds": 60, "threads_per_rank": 1, "rendezvous": {"kind": "file"}},
    "network": {
        "classes": {
            "tp_forward": {
                "path": "direct",
                "payload_bytes": 1408,
                "consistency": "shared",
                "burst_scope": "link",
                "reduce": {"loss": {"model": "bernoulli", "loss_rate": 0.05}, "fill": "zero"},
                "gather": {
                    "loss": {"model": "gilbert_elliott", "loss_rate": 0.05, "mean_burst_packets": 8},
                    "fill": "own",
                },
            }
        }
    },
    "time": {
        "link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 100.5},
        **{"header_bytes": 0, "compute_milliseconds": 12.5, "deadline_microseconds": 50},
        "stragglers": {"compute_p99_over_p50": 1.5, "transfer_p99_over_p50": 2},
        "retransmission": {"protocol": "none"},
    },
    "training": {
        **{"steps": 1, "batch_sequences": 1, "sequence_tokens": 8, "accumulation": 1, "warmup_steps": 0},
        "precision": {"compute": "bfloat16", "message": "float32", "master": "float32"},
        **{"learning_rate": 0.1, "final_learning_rate": 0, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95},
        **{"epsilon": 1e-8, "gradient_clip": 1},
    },
    "validation": {"every_steps": 1, "tokens": 1, "selection_tokens": 1, "network": "lossless"},
    "record": {"every_steps": 1, "sample_every_steps": 0, "links": "omit", "weights": "none"},
}
SHARD = {"file": "a", "bytes": 1048, "tokens": 12, "crc32c": "01234567"}
CLASSIFICATION = {
    **RESOLVED,
    "task": "classification",
    "model": {**RESOLVED["model"], "pretrained": "p", "sha256": "0" * 64, "vocabulary_sha256": "1" * 64},
    "data": {
        **{"examples": "a.tsv", "sha256": "2" * 64, "validation_examples": "b.tsv", "validation_sha256": "3" * 64},
        **{"layout": "plain", "labels": ["a", "b"], "separator": "\n", "too_long": "cut"},
    },
    "training": {
        **RESOLVED["training"],
        "class_weights": [1, 2.5],
        "tensors": [{"match": "h.*", "learning_rate_factor": 0}],
        "lora": {"rank": 4, "alpha": 8, "targets": ["mlp.c_fc"]},
    },
}
ESTIMATE = {"value": 0.5, "low": 0, "high": 1}
QUALITY = {"examples": 6, "accuracy": ESTIMATE, "macro_f1": ESTIMATE, "calibration_error": ESTIMATE}
QUALITY_OF_CLASSES = {**QUALITY, "classes": ["a", "b"], "f1": [ESTIMATE] * 2, "confusion": [[1, 2], [0, 3]]}
SHARDED = {
    **RESOLVED,
    "data": {
        **{"shards": ["a*", "b"], "validation_shards": "v", "manifest": "m", "format": "llmc", "shuffle": False},
        **{"lost_limit": 0.5, "retries": {"attempts": 2, "backoff_seconds": 0.5}},
        "files": [SHARD, {"file": "b", "bytes": 8, "tokens": 4, "sha256": "01234567" * 8}],
        "validation_files": [SHARD],
    },
    "training": {
        **RESOLVED["training"],
        **{"epochs": 2, "drop_last": True},
        "schedule": {"kind": "table", "points": [{"step": 0, "factor": 0.5}, {"step": 9, "factor": 1}]},
    },
}
BERNOULLI = {"model": "bernoulli", "loss_rate": 0.05}
RESOLVED_PROCESSES = copy.deepcopy(RESOLVED)
RESOLVED_PROCESSES["network"]["classes"] = {
    "tp_forward": {
        **RESOLVED["network"]["classes"]["tp_forward"],
        "reduce": {
            "loss": {"model": "four_state", "p13": 0.1, "p32": 0, "p23": 1, "p14": 0},
            "fill": "zero",
            "links": [
                {"sources": [0, "1-2"], "destinations": [3], "loss": {"model": "pattern", "every": 3, "offset": 0}},
                {
                    "within_groups_of": 2,
                    "loss": {"model": "trace", "file": "t", "start": "random", "sha256": "01234567" * 8},
                },
            ],
        },
        "gather": {
            "loss": {
                "model": "schedule",
                "phases": [
                    {
                        "from_step": 3,
                        "loss": {
                            "model": "outage",
                            "windows": [{"from_step": 1, "to_step": 2}],
                            "loss_rate": 1,
                            "otherwise": BERNOULLI,
                        },
                    },
                    {
                        "from_step": 4,
                        "loss": {
                            "model": "timed_gilbert_elliott",
                            "mean_good_microseconds": 100,
                            "mean_bad_microseconds": 10,
                            "packet_microseconds": 0.5,
                            "gap_microseconds": 0,
                            "loss_good": 0,
                            "loss_bad": 1,
                        },
                    },
                ],
            },
            "fill": "own",
        },
    }
}
SUMMARY = {
    "kernels": {"attention": {"library": "a.so", "sha256": "0" * 64, "name": "a 1"}, "matmul": "onednn"},
    "schema_version": 1,
    "run_id": "0123456789abcdef",
    "name": "t",
    "status": "completed",
    "error": None,
    "diverged_step": None,
    "seeds": {"weights": 18446744073709551615, "data": 18446744073709551615, "network": 18446744073709551615},
    "seed": 18446744073709551615,
    "point": {"/network/loss": {"model": "none"}},
    "labels": [{"label": "l", "pointers": ["/network/loss"]}],
    "steps": 1,
    "tokens": 1,
    "train": {"final_loss": 2.5},
    "validation": {"final_loss": None, "best_loss": 2.5, "tokens": 1, "selection_loss": 2, "selection_tokens": 8},
    "tokens_per_second": 1.5,
    "seconds": 1,
    "time": {
        **{"virtual_seconds": 1.5, "compute_seconds": 1, "packets": 3, "repeated_packets": 2, "timeouts": 1},
        "late_packets": 0,
    },
    "data": {
        **{"shards": 2, "samples": 10, "epochs": 1.5, "lost_samples": 3},
        "lost_shards": [{"file": "f", "samples": 3, "step": 1, "error": "e"}],
    },
    "loss": {"tp_forward": {"reduce": LOSS, "gather": LOSS}},
    "warnings": [
        {"pointer": "/network", "message": "m"},
        {"pointer": "/checkpoint", "message": "m", "mark": "resumed"},
    ],
    "twin_omits": ["/network", "/data/text"],
    "provenance": {
        **{"version": "0.1.0", "commit": "c", "host": "h", "compiler": "g", "libraries": {"Eigen": "3.4.0"}},
        **{"started": "2025-01-01T00:00:00Z", "finished": "2025-01-01T00:00:01Z"},
    },
}
METRICS = {
    **{"step": 10, "tokens": 1, "seconds": 0.5, "train_loss": None, "learning_rate": 0.1, "gradient_norm": 1},
    "validation_loss": 2.5,
    "selection_loss": None,
    "virtual_seconds": 0.25,
    "lost_samples": 3,
    "failed_checkpoints": 2,
    "divergence": {"max": 0.1, "rms": None, "groups": {"bias": {"max": 0, "rms": 0}}},
    "classes": {"tp_forward": {"nmse": 0.1, "cosine": None}},
}
SWEEP = {
    **{"schema_version": 1, "name": "t", "description": "", "spec": EVERYTHING, "best_over": ["/training/steps"]},
    "names": [{"pointer": "/training/steps", "name": "steps"}],
    "runs": [{"run_id": "0123456789abcdef", "point": {}, "seeds": {"weights": 1, "data": 1, "network": 2}}],
}
GAPS = {"gap_histogram": [{"from": 2, "to": 3, "count": 5, "expected": None}]}
LAYERS = {
    "layers": [
        {
            **{"layer": None, "steps": 3, "untouched_steps": 1, "untouched_share": 0.5, "sampled_calls": 2},
            **{"bias": -0.1, "nmse": 0.1, "cosine": 0.9, "divergence_max": 0, "divergence_rms": None},
        },
        {
            **{"layer": 3, "steps": 3, "untouched_steps": 1, "untouched_share": 0.5, "sampled_calls": 0},
            **dict.fromkeys(("error_energy", "exact_energy", "bias", "nmse", "cosine")),
            **{"divergence_max": None, "divergence_rms": None},
        },
    ],
    "halves": {"reduce": GAPS, "gather": {"gap_histogram": []}},
}
JUDGED_RUN = {"run_id": "0123456789abcdef", "seed": 1, "status": "completed", "loss": 2.5}
SEARCH = {
    **{"schema_version": 1, "name": "t", "description": "", "spec": EVERYTHING, "status": "found", "remark": "r"},
    "settings": {
        **{"pointer": "/network/loss/loss_rate", "low": 0.01, "high": 0.5, "tolerance_percent": 1, "resolution": 0.1},
        **{"confidence": 0.95, "seeds": 3, "max_seeds": 9, "max_runs": 40},
    },
    **{"threshold": 0.1, "interval": {"low": None, "high": 0.2}, "monotone": True, "runs": 12},
    "twins": [JUDGED_RUN],
    "rates": [
        {
            **{"rate": 0.05, "verdict": "undecided", "pairs": 1},
            **{"mean_percent": 0.5, "low_percent": None, "high_percent": None},
            "runs": [{**JUDGED_RUN, "difference_percent": 0.5}],
        }
    ],
}
RENDEZVOUS = [
    {"kind": "auto"},
    {"kind": "file", "directory": "d"},
    {"kind": "redis", "host": "h", "port": 6379},
    *[{"kind": "tcp"}, {"kind": "tcp", "host": "node1"}, {"kind": "tcp", "host": "node1", "port": 65535}],
]
VALID = {
    "spec": [EVERYTHING, {"name": "t", "data": {"text": "a"}}]
    + [{"name": "t", "data": {"shards": "a*", "format": "text"}, "training": {"epochs": 1, "schedule": "linear"}}]
    + [{"name": "t", "data": {"text": "a"}, "backend": {"rendezvous": place}} for place in RENDEZVOUS]
    # The schema is of whole specs: a spec that extends another may lack the other's members.
    + [
        spec
        for path in sorted((ROOT / "experiments" / "specs").rglob("*.json"))
        if "extends" not in (spec := json.loads(path.read_text()))
    ],
    "resolved_spec": [RESOLVED, RESOLVED_PROCESSES, SHARDED, CLASSIFICATION]
    + [{**RESOLVED, "backend": {**RESOLVED["backend"], "rendezvous": place}} for place in RENDEZVOUS],
    "metrics": [METRICS, {**METRICS, "classification": QUALITY}, {"step": 0, "tokens": 0, "seconds": 0}],
    "loss_statistics": [
        {"schema_version": 1, "classes": {}},
        {"schema_version": 1, "classes": {"tp_forward": CLASS}, "links": [LINK, {**LINK, "destination": 3}]},
    ],
    "summary": [SUMMARY, {**SUMMARY, "classification": QUALITY_OF_CLASSES}],
    "predictions": [
        {"schema_version": 1, "classes": ["a", "b"], "labels": [0, 1], "predictions": [1, 1], "confidences": [0.5, 1]}
    ],
    "shards": [{"schema_version": 1, "files": [{"file": "a", "bytes": 3, "crc32c": "01234567"}]}],
    "sweep": [SWEEP],
    "diagnostics": [{"schema_version": 1, "classes": {}}, {"schema_version": 1, "classes": {"tp_forward": LAYERS}}],
    "search": [SEARCH, {**SEARCH, "threshold": None, "status": "searching", "rates": [], "twins": []}],
}
VALUES = [
    *[None, True, False, 0, 1, -1, 2, 3.0, 0.5, 1.5, -0.5, 8, 12, 1408.0, 65534, 65535, 1e12, 1e300],
    *[18446744073709551615, 18446744073709551616, "", "x", "5%", "101%", "100.0%", "zero", "own", "direct", "none"],
    *["bernoulli", "gilbert_elliott", "a/b", ".x", "0123456789abcdef", "0123456789ABCDEF", [], [1], {}],
    *[
        {"model": "none"},
        {"kind": "redis"},
        {"kind": "tcp"},
        {"kind": "auto", "port": 1},
        {"model": "bernoulli", "loss_rate": 0.1},
        {"text": "a"},
    ],
]
KEYS = ["model", "loss_rate", "extra", "loss", "fill", "text", "tokens", "kind", "port", "/x", "tp_forward", "steps"]


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in items:
        yield from places(member, (*path, key))


def mutated(document, rng):
    """The document with one to three values replaced, removed or added."""
    document = copy.deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(list(places(document)))
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        target = parent[path[-1]] if path else document
        action = rng.choice(["replace", "remove", "add"])
        if action == "add" and isinstance(target, dict):
            target[rng.choice(KEYS)] = rng.choice(VALUES)
        elif action == "remove" and path:
            del parent[path[-1]]
        elif path:
            parent[path[-1]] = copy.deepcopy(rng.choice(VALUES))
    return document


def is_rounded(value):
    """Whether the program refuses the number where an integer is wanted: JSON Schema has integers of any size."""
    return isinstance(value, (int, float)) and (value >= 2**64 or (isinstance(value, float) and abs(value) >= 2**53))


def has_rounded(value):
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return is_rounded(value) or any(map(has_rounded, items))


def verdicts_of_program(documents):
    lines = "".join(json.dumps({"schema": name, "document": document}) + "\n" for name, document in documents)
    run = subprocess.run([program()], input=lines, capture_output=True, text=True, timeout=600, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_valid_documents_are_valid_to_both():
    documents = [(name, document) for name in NAMES for document in VALID[name]]
    both = validators()
    for (name, document), pointers in zip(documents, verdicts_of_program(documents), strict=True):
        assert pointers == []
        assert list(both[name].iter_errors(document)) == []


def test_verdicts_agree_on_mutated_documents():
    rng = random.Random(1)
    documents = [(name, mutated(rng.choice(VALID[name]), rng)) for name in NAMES for _ in range(400)]
    both = validators()
    rejected = 0
    for (name, document), pointers in zip(documents, verdicts_of_program(documents), strict=True):
        expected = both[name].is_valid(document)
        if expected and pointers and has_rounded(document):
            continue
        assert (pointers == []) == expected, f"{name}: {json.dumps(document)}: program says {pointers}"
        rejected += not expected
    assert len(documents) * 0.3 < rejected < len(documents) * 0.99
