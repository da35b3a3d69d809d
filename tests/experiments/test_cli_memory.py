# SPDX-License-Identifier: Apache-2.0
"""Runs whose offload file fails, as their users see them."""

import contextlib
import json
import os
import resource

import pytest
from cli_harness import losses_of, metrics_of, run, run_folders, start, summary_of, write_spec

OFFLOADED = {"recompute": "full", "offload": True, "directory": "offload"}
CHUNKED = {"attention_chunk": 12, "directory": "offload"}  # 12 does not divide the context
ROOM = 1 << 16  # bytes: more than any record, less than the residual streams of a rank


def write_run(folder, name, **changes):
    """A line after each step; no checkpoint."""
    return write_spec(
        folder,
        f"{name}.json",
        name=name,
        model={"layers": 4, "width": 32, "heads": 4, "context": 32, "vocabulary": 256},
        # A schedule that does not depend on the number of steps.
        training={
            "batch_sequences": 8,
            "learning_rate": 0.001,
            "final_learning_rate": 0.001,
            "warmup_steps": 2,
            "steps": 12,
        },
        record={"every_steps": 1, "sample_every_steps": 0},
        **changes,
    )


def losses(lines):
    return [(line["step"], line.get("train_loss"), line.get("gradient_norm"), line.get("losses")) for line in lines]


def is_full(process):
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (ROOM, ROOM))


def is_cut(process):
    """The files of both ranks, which have no name."""
    folder = f"/proc/{process.pid}/fd"
    for descriptor in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # another file, which is closed meanwhile
            if "/droptest-offload-" in os.readlink(f"{folder}/{descriptor}"):
                os.truncate(f"{folder}/{descriptor}", 0)


@pytest.mark.parametrize(
    ("fail", "wanted"),
    [(is_full, "File too large; want room in this directory"), (is_cut, "the file has been cut")],
)
@pytest.mark.parametrize(
    ("memory", "in_memory"), [(OFFLOADED, {}), (CHUNKED, {"memory": {"attention_chunk": 12}})], ids=["block", "chunk"]
)
def test_a_failed_offload_file_is_named_and_no_record_is_lost(tmp_path, holds, memory, in_memory, fail, wanted):
    (tmp_path / "offload").mkdir()
    # Between the passes of a step, with saved activations in the files. A full disk is found in the next step.
    holds.at("forward-5")
    words = ("run", write_run(tmp_path, "offloaded", memory=memory), "--quiet")
    process = start(*words, cwd=tmp_path, environment=holds.environment)
    holds.reached("forward-5", 2)
    fail(process)
    holds.release("forward-5")
    _, err = process.communicate(timeout=600)
    assert process.returncode > 0, "an error, neither a signal nor success"
    assert "offload file offload/droptest-offload-" in err
    assert wanted in err
    (folder,) = run_folders(tmp_path, "offloaded")
    summary = summary_of(folder)
    assert summary["status"] == "failed"
    assert "offload file offload/droptest-offload-" in summary["error"]
    assert " bytes at " in summary["error"]
    assert wanted in summary["error"]
    lines = metrics_of(folder)
    steps = len(lines)
    assert steps in (5, 6)
    saved = write_run(tmp_path, "saved", **in_memory)
    run("run", saved, "--set", f"/training/steps={steps}", "--quiet", cwd=tmp_path)
    assert losses(lines) == losses(metrics_of(run_folders(tmp_path, "saved")[0]))[:steps]


def test_plan_counts_the_packets_that_recomputation_sends_again(tmp_path):
    sent = {"recompute": "full", "recompute_traffic": "sent"}
    classes = []
    for name, memory in (("kept", "basic"), ("sent", sent)):
        spec = write_spec(tmp_path, f"{name}.json", name=name, memory=memory)
        planned = json.loads(run("plan", spec, "--json", cwd=tmp_path).out)["runs"][0]["packets"]
        run("run", spec, "--quiet", cwd=tmp_path)
        folder = run_folders(tmp_path, name)[0]
        classes.append(json.loads((folder / "loss_statistics.json").read_text())["classes"])
        assert {of: record["packets"] for of, record in classes[-1].items()} == planned
    again = classes[1].pop("tp_recomputation")
    assert classes[1] == classes[0]
    # A model of one block: two of the three sums of a forward pass are in it.
    assert again["packets"] * 3 == classes[0]["tp_forward"]["packets"] * 2
    summaries = [summary_of(run_folders(tmp_path, name)[0]) for name in ("kept", "sent")]
    assert summaries[0]["train"] == summaries[1]["train"]
    assert summaries[0]["validation"] == summaries[1]["validation"]
    assert summaries[0]["run_id"] != summaries[1]["run_id"]


def test_attention_in_chunks_is_attention_in_the_memory_of_its_plan(tmp_path):
    model = {"layers": 4, "width": 32, "heads": 4, "context": 64, "vocabulary": 256}
    training = {"steps": 6, "batch_sequences": 4, "learning_rate": 0.01, "warmup_steps": 2}
    network = {"path": "direct", "payload_bytes": 256}
    members = {}
    for name, memory in (("dense", "basic"), ("chunks", {"attention_chunk": 24})):
        spec = write_spec(
            tmp_path, f"{name}.json", name=name, model=model, training=training, network=network, memory=memory
        )
        planned = json.loads(run("plan", spec, "--json", cwd=tmp_path).out)["runs"][0]["memory"]
        run("run", spec, "--quiet", cwd=tmp_path)
        summary = summary_of(run_folders(tmp_path, name)[0])
        assert summary["memory"]["model"]["activations"]["bytes"] == planned["activations"]
        members[name] = planned, summary, losses_of(run_folders(tmp_path, name)[0])[6]
    (dense, of_dense, losses), (chunks, of_chunks, losses_in_chunks) = members["dense"], members["chunks"]
    assert chunks["activations"] < dense["activations"]
    # Two tensor-parallel ranks: queries, keys and values of half of the width, in each of four blocks.
    assert (dense["offloaded"], chunks["offloaded"]) == (0, 4 * 3 * 4 * 64 * 16 * 4)
    assert losses_in_chunks == pytest.approx(losses, rel=1e-5)
    assert of_chunks["run_id"] != of_dense["run_id"]
