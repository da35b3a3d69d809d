# SPDX-License-Identifier: Apache-2.0
"""A run id can be computed from a run's spec.json with any SHA-256 and JSON writer, as docs/specs.md says."""

import hashlib
import json

import pytest
from cli_harness import run, run_folders, summary_of, tiny_spec, write_corpus, write_spec


def leave_paths_out(value):
    """A file counts by its hash."""
    paths = []
    if isinstance(value, dict) and ("sha256" in value or "crc32c" in value):
        paths += ["text", "weights", "file", "manifest", "library"]
        paths += ["tokens"] if "bytes" not in value else []
    if isinstance(value, dict) and "files" in value:
        paths += ["shards", "validation_shards", "manifest"]
    if paths:
        value.update({path: "" for path in paths if path in value})
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        leave_paths_out(member)


def run_id(spec):
    """The id of a resolved spec, computed without droptest."""
    for key in ("name", "description", "record"):
        del spec[key]
    if "memory" in spec:
        memory = spec.pop("memory")
        if "attention_chunk" in memory:
            spec["memory"] = {"attention_chunk": memory["attention_chunk"]}
    for key in ("timeout_seconds", "threads_per_rank", "rendezvous"):
        del spec["backend"][key]
    for key in ("lost_limit", "retries"):
        spec["data"].pop(key, None)
    for key in ("files", "validation_files"):
        for file in spec["data"].get(key, ()):
            file.pop("version", None)
    leave_paths_out(spec)
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def id_of_run(folder, **changes):
    """The id that droptest gives to a run, which is the one computed from its spec.json."""
    write_spec(folder, name="one", **changes)
    known = set(run_folders(folder, "one"))
    run("run", "spec.json", "--quiet", cwd=folder)
    (run_folder,) = set(run_folders(folder, "one")) - known
    computed = run_id(json.loads((run_folder / "spec.json").read_text()))
    assert run_folder.name == summary_of(run_folder)["run_id"] == computed
    return computed


def manifest_of(folder):
    """The section of a spec with a manifest of the corpus."""
    run("shards", "corpus.txt", "--out", "shards.json", cwd=folder)
    return {"shards": "corpus.txt", "format": "text", "manifest": "shards.json"}


TRAINING = tiny_spec()["training"] | {"steps": 1, "warmup_steps": 0}


def test_the_id_of_a_run_is_that_of_its_spec_file(tmp_path):
    # Numbers that writers could write in several ways, and text that they could escape.
    write_corpus(tmp_path / 'größe "\u20ac\t.txt', size=21000)
    rates = {"learning_rate": 1e-05, "final_learning_rate": 3e-7, "epsilon": 2.5e-10, "weight_decay": 1 / 3}
    burst = {"model": "gilbert_elliott", "loss_rate": "7%", "mean_burst_packets": 3}
    ids = {
        id_of_run(tmp_path, training=TRAINING),
        id_of_run(tmp_path, training=TRAINING | rates),
        id_of_run(tmp_path, training=TRAINING, data={"text": 'größe "\u20ac\t.txt'}),
        id_of_run(tmp_path, training=TRAINING, seed=2**64 - 1),
        id_of_run(tmp_path, training=TRAINING, network={"loss": burst, "path": "ring", "payload_bytes": 256}),
        id_of_run(tmp_path, training=TRAINING, network={}),
        id_of_run(tmp_path, training=TRAINING, data={"shards": ["corp*.txt"], "format": "text", "lost_limit": 0.5}),
        id_of_run(tmp_path, training=TRAINING, data=manifest_of(tmp_path)),
        id_of_run(tmp_path, training=TRAINING, kernels={"matmul": "eigen"}),
        id_of_run(tmp_path, training=TRAINING, memory={"attention_chunk": 9, "recompute": "full"}),
    }
    assert len(ids) == 10


@pytest.mark.parametrize("other", [{"description": "other words"}, {"record": {"every_steps": 1}}])
def test_what_cannot_change_a_result_is_not_in_the_id(tmp_path, other):
    one = id_of_run(tmp_path, training=TRAINING)
    write_spec(tmp_path, "other.json", name="one", training=TRAINING, **other)
    indifferent = ("--set", "/backend/threads_per_rank=2", "--set", "/backend/timeout_seconds=9")
    run("run", "other.json", *indifferent, cwd=tmp_path)
    assert [folder.name for folder in run_folders(tmp_path, "one")] == [one]
