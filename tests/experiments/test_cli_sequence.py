# SPDX-License-Identifier: Apache-2.0
"""Ranks that share sequences, documents and dilated attention, from a spec to its records."""

import json

import pytest
from cli_harness import losses_of, metrics_of, run, run_folders, write_spec

NO_LOSS = {"path": "direct", "payload_bytes": 256}
# 31 tokens are no multiple of 2 or 3 ranks.
TRAINING = {
    "steps": 12,
    "batch_sequences": 2,
    "sequence_tokens": 31,
    "learning_rate": 0.01,
    "warmup_steps": 2,
}

DILATED = {
    "layers": 1,
    "width": 32,
    "heads": 4,
    "context": 32,
    "vocabulary": 256,
    "attention": {"kind": "dilated", "branches": [{"segment": 8, "dilation": 1}, {"segment": 32, "dilation": 2}]},
}


def folder_of(tmp_path, name, **changes):
    changes = {"parallel": {}, "network": NO_LOSS, "training": TRAINING, **changes}
    write_spec(tmp_path, f"{name}.json", name=name, **changes)
    run("run", f"{name}.json", "--quiet", cwd=tmp_path)
    (folder,) = run_folders(tmp_path, name)
    return folder


def sequence(ranks, kind, **more):
    return {"sequence": ranks, "sequence_kind": kind, **more}


def losing(rate, fill):
    loss = {"model": "bernoulli", "loss_rate": rate}
    return {
        **NO_LOSS,
        "classes": {
            "sequence_forward": {"loss": loss, "fill": fill},
            "sequence_backward": {"loss": loss},
        },
    }


def numbers_of(folder):
    return [
        (m["step"], m.get("train_loss"), m.get("gradient_norm"), m.get("validation_loss"), m.get("losses"))
        for m in metrics_of(folder)
    ]


def packets_of(folder):
    counted = {}
    for line in metrics_of(folder):
        for name, losses in line.get("losses", {}).items():
            counted[name] = losses["packets"]
    return counted


@pytest.mark.parametrize(
    "parallel",
    [
        sequence(4, "ulysses"),
        sequence(3, "ring"),
        sequence(2, "zigzag", data=2, zero=1),
        sequence(4, {"ulysses": 2, "ring": 2, "zigzag": True}),
        sequence(2, "ring", tensor=2),
        sequence(2, "ulysses", data=2, tensor=2, zero=3),
    ],
    ids=lambda parallel: "-".join(f"{k}_{v}" for k, v in parallel.items() if not isinstance(v, dict)),
)
def test_a_run_is_that_of_one_rank(tmp_path, parallel):
    one = losses_of(folder_of(tmp_path, "one"))
    batch = TRAINING["batch_sequences"] // parallel.get("data", 1)
    many = folder_of(tmp_path, "many", parallel=parallel, training={**TRAINING, "batch_sequences": batch})
    for step, (trained, validated) in losses_of(many).items():
        if trained is not None:
            assert trained == pytest.approx(one[step][0], rel=1e-4)
        if validated is not None:
            assert validated == pytest.approx(one[step][1], rel=1e-4)


def test_a_pipeline_of_sequence_ranks_is_one_rank(tmp_path):
    model = {"layers": 2, "width": 32, "heads": 4, "context": 32, "vocabulary": 256}
    training = {**TRAINING, "batch_sequences": 1, "accumulation": 2}
    one = losses_of(folder_of(tmp_path, "one", model=model, training=training))
    many = losses_of(
        folder_of(tmp_path, "many", model=model, training=training, parallel=sequence(2, "zigzag", pipeline=2))
    )
    assert many[12] == pytest.approx(one[12], rel=1e-4)


@pytest.mark.parametrize("fill", ["absent", "zero"])
@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": sequence(3, "ulysses")},
        {"parallel": sequence(3, "ring")},
        {"parallel": sequence(3, "zigzag")},
        {"parallel": sequence(4, {"ulysses": 2, "ring": 2})},
        {"parallel": sequence(2, "ring"), "model": DILATED},
    ],
    ids=["ulysses", "ring", "zigzag", "both", "dilated"],
)
def test_gloo_loses_what_local_loses_and_the_plan_has_the_packets(tmp_path, changes, fill):
    spec = {**changes, "network": losing(0.05, fill)}
    local = folder_of(tmp_path, "local", **spec)
    packets = packets_of(local)
    assert packets["sequence_forward"] > 0 and packets["sequence_backward"] > 0
    planned = json.loads(run("plan", "local.json", "--json", cwd=tmp_path).out)
    assert packets == planned["runs"][0]["packets"]
    if "gloo (not built)" not in run("info", cwd=tmp_path).out:
        backend = {"name": "gloo", "timeout_seconds": 20}
        assert numbers_of(folder_of(tmp_path, "gloo", backend=backend, **spec)) == numbers_of(local)


def test_lost_keys_change_the_loss_and_absent_is_not_zero(tmp_path):
    losses = set()
    for name, network in (
        ("lossless", NO_LOSS),
        ("absent", losing(0.2, "absent")),
        ("zero", losing(0.2, "zero")),
    ):
        losses.add(losses_of(folder_of(tmp_path, name, parallel=sequence(2, "ring"), network=network))[12])
    assert len(losses) == 3


def test_a_checkpoint_goes_on_with_other_sequence_ranks(tmp_path):
    checkpoint = {"every_steps": 6}
    whole = losses_of(folder_of(tmp_path, "whole"))
    first = folder_of(
        tmp_path,
        "first",
        parallel=sequence(2, "ulysses", zero=1),
        checkpoint=checkpoint,
    )
    others = ("--set", "/parallel/sequence=3", "--set", "/parallel/sequence_kind=zigzag")
    run("resume", str(first), "--at", "6", *others, "--quiet", cwd=tmp_path)
    (second,) = [folder for folder in run_folders(tmp_path, "first") if folder != first]
    assert losses_of(second)[12] == pytest.approx(whole[12], rel=1e-4)


def test_documents_and_dilation_change_the_run_and_hold_over_ranks(tmp_path):
    documents = {"text": "corpus.txt", "documents": True, "end_of_text": 10}
    losses = {losses_of(folder_of(tmp_path, "dense"))[12]}
    for name, changes in {"documents": {"data": documents}, "dilated": {"model": DILATED}}.items():
        one = losses_of(folder_of(tmp_path, name, **changes))[12]
        many = losses_of(folder_of(tmp_path, name + "_ring", parallel=sequence(3, "ring"), **changes))[12]
        assert many == pytest.approx(one, rel=1e-4)
        losses.add(one)
    assert len(losses) == 3


def test_kinds_of_one_layout_are_one_run(tmp_path):
    ids = set()
    for kind in ("ring", {"ulysses": 1, "ring": 2}, {"ulysses": 1, "ring": 2, "zigzag": False}):
        ids.add(folder_of(tmp_path, "same", parallel=sequence(2, kind), training={**TRAINING, "steps": 3}).name)
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (
            {"parallel": sequence(4, {"ulysses": 2, "ring": 3})},
            "/parallel/sequence_kind: got ulysses 2 x ring 3, want a product of 4, the ranks of /parallel/sequence",
        ),
        (
            {"parallel": sequence(8, "ulysses")},
            "/parallel/sequence_kind: got 8 Ulysses ranks for 4 attention heads of a tensor-parallel rank",
        ),
        (
            {"parallel": sequence(4, "ulysses", tensor=2)},
            "/parallel/sequence_kind: got 4 Ulysses ranks for 2 attention heads of a tensor-parallel rank",
        ),
        (
            {"parallel": {"sequence_kind": "ring"}},
            '/parallel/sequence_kind: got "ring", which one rank has no use for',
        ),
        (
            {
                "parallel": sequence(2, "ring", tensor=2),
                "memory": {"strategy": "standard", "recompute": "full", "recompute_traffic": "sent"},
            },
            '/memory/recompute_traffic: got "sent" with /parallel/sequence 2, want "kept"',
        ),
        (
            {"data": {"text": "corpus.txt", "documents": True}},
            "/data/end_of_text: is missing, want a token below the vocabulary 256, which ends each document",
        ),
        (
            {"data": {"text": "corpus.txt", "end_of_text": 10}},
            "/data/end_of_text: got 10, want it absent, or /data/documents true",
        ),
        (
            {"model": {"attention": {"kind": "dilated", "branches": [{"segment": 4, "dilation": 8}]}}},
            "/model/attention/branches: ",
        ),
        (
            {"model": {"attention": {"gradient": "stopped"}}},
            '/model/attention/gradient: got "stopped", want it absent, or /model/attention/kind "dilated"',
        ),
    ],
)
def test_what_cannot_be_is_refused_with_what_would_fit(tmp_path, changes, error):
    write_spec(tmp_path, "bad.json", **{"parallel": {}, "network": NO_LOSS, "training": TRAINING, **changes})
    result = run("validate", "bad.json", cwd=tmp_path, expect=2)
    assert error in result.err + result.out


def test_a_class_without_sequence_ranks_is_an_error(tmp_path):
    write_spec(tmp_path, "idle.json", parallel={"tensor": 2}, network=losing(0.1, "absent"))
    result = run("validate", "idle.json", cwd=tmp_path, expect=2)
    assert "want /parallel/sequence 2 or more" in result.err + result.out


def test_a_misspelt_kind_is_answered_with_all_kinds(tmp_path):
    write_spec(tmp_path, "spec.json", name="odd", parallel=sequence(2, "rng"))
    err = run("validate", "spec.json", cwd=tmp_path, expect=2).err
    assert 'got "rng", want one of "ulysses", "ring", "zigzag", or an object with "ulysses" and "ring"' in err
    assert 'did you mean "ring"?' in err
