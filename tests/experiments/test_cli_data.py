# SPDX-License-Identifier: Apache-2.0
"""Runs on shards: their records, shards that are lost, and the manifest."""

import json
import re

import numpy
import pytest
from cli_harness import events_of, marks_of, metrics_of, run, run_folders, summary_of, write_corpus, write_spec

TRAINING = {"epochs": 1, "batch_sequences": 4, "learning_rate": 0.01}


def write_shards(folder, sizes=(6000, 3000, 9000)):
    (folder / "corpus").mkdir()
    for i, size in enumerate(sizes):
        write_corpus(folder / "corpus" / f"part_{i}.txt", size)


def spec_of_shards(folder, file="spec.json", training=None, **members):
    data = {"shards": "corpus/part_*.txt", "format": "text", **members}
    write_spec(folder, file, data=data, training=training or TRAINING, network={}, parallel={"tensor": 1})


def only_run(folder):
    (one,) = run_folders(folder)
    return one


def test_an_epoch_trains_on_every_sample_and_is_recorded(tmp_path):
    write_shards(tmp_path)
    spec_of_shards(tmp_path)
    run("run", "spec.json", cwd=tmp_path)
    folder = only_run(tmp_path)
    spec, summary = json.loads((folder / "spec.json").read_text()), summary_of(folder)
    tokens = [file["tokens"] for file in spec["data"]["files"]]
    assert tokens == [(tmp_path / "corpus" / f"part_{i}.txt").stat().st_size for i in range(3)]
    # The last tenth validates: part of the last shard.
    trained = [*tokens[:2], tokens[2] - round(0.1 * sum(tokens))]
    samples = sum((count - 1) // 32 for count in trained)
    assert summary["data"] == {"shards": 3, "samples": samples, "epochs": 1, "lost_samples": 0, "lost_shards": []}
    assert summary["steps"] == -(-samples // 4) == spec["training"]["steps"]
    assert summary["tokens"] == samples * 32
    # The resolved spec is that of the same run.
    run("run", folder / "spec.json", cwd=tmp_path)
    assert run_folders(tmp_path) == [folder]


def manifest_of(folder):
    run("shards", "corpus/part_*.txt", "--out", "corpus/shards.json", cwd=folder)
    return json.loads((folder / "corpus" / "shards.json").read_text())


def test_a_shard_with_another_content_is_lost_within_the_limit(tmp_path):
    write_shards(tmp_path)
    manifest = manifest_of(tmp_path)
    assert [file["file"] for file in manifest["files"]] == [f"part_{i}.txt" for i in range(3)]
    shard = tmp_path / "corpus" / "part_1.txt"
    text = shard.read_text()
    shard.write_text(text.replace("sea", "fox", 1))
    spec_of_shards(tmp_path, manifest="corpus/shards.json")
    failed = run("run", "spec.json", cwd=tmp_path, expect=2)
    lost = "corpus/part_1.txt: its content has another CRC-32C than the manifest; without it"
    assert lost in failed.err and "more than /data/lost_limit allows" in failed.err
    assert lost in summary_of(only_run(tmp_path))["error"]

    spec_of_shards(tmp_path, manifest="corpus/shards.json", lost_limit=0.5)
    ran = run("run", "spec.json", cwd=tmp_path)
    assert "step 1: corpus/part_1.txt is set aside with" in ran.err
    data = summary_of(only_run(tmp_path))["data"]
    assert data["lost_samples"] == data["lost_shards"][0]["samples"] == (len(text) - 1) // 32
    lost = f"training left out {data['lost_samples']} samples of 1 shard that could not be read"
    assert marks_of(summary_of(only_run(tmp_path))) == {"lost_samples": lost}
    assert "completed (lost samples): validation loss" in ran.out
    lines = metrics_of(only_run(tmp_path))
    assert lines[-1]["lost_samples"] == data["lost_samples"]
    first = next(line for line in lines if line.get("lost_samples"))
    of_samples = [event for event in events_of(only_run(tmp_path)) if event["kind"] == "lost_samples"]
    assert (of_samples[0]["step"], of_samples[0]["value"]) == (first["step"], first["lost_samples"])


def test_errors_of_shards_come_before_any_work(tmp_path):
    write_shards(tmp_path)
    spec_of_shards(tmp_path, shards="corpus/*.bin")
    failed = run("run", "spec.json", cwd=tmp_path, expect=2)
    assert "/data/shards: corpus/*.bin: no file matches; folder corpus has 3 entries" in failed.err
    spec_of_shards(tmp_path, training={**TRAINING, "steps": 7})
    failed = run("validate", "spec.json", cwd=tmp_path, expect=2)
    assert "/training/steps: got 7, but /training/epochs 1 of " in failed.err
    assert not (tmp_path / "results").exists()


def test_ranks_as_processes_read_the_same_samples(tmp_path):
    write_shards(tmp_path)
    spec_of_shards(tmp_path)
    losses = {}
    for backend in ("local", "gloo"):
        overrides = ("--set", f"/backend/name={backend}", "--set", "/parallel/data=2", "--out", backend)
        run("run", "spec.json", *overrides, cwd=tmp_path)
        (folder,) = run_folders(tmp_path, out=backend)
        losses[backend] = [line.get("train_loss") for line in metrics_of(folder)]
    assert losses["local"][1:] == pytest.approx(losses["gloo"][1:], rel=1e-4)


def test_files_that_numpy_writes_are_no_headerless_tokens(tmp_path):
    draw = numpy.random.default_rng(1)
    write_spec(tmp_path, data={"tokens": "a.bin"}, network={}, parallel={"tensor": 1})

    def refusal():
        return run("run", "spec.json", cwd=tmp_path, expect=2).err

    for kind in ("<u2", "<i4", "<i8"):
        tokens = draw.integers(0, 256, 20_000).astype(kind)
        with (tmp_path / "a.bin").open("wb") as file:
            numpy.save(file, tokens)
        assert "a.bin: is a NumPy file (.npy); want its numbers without a header" in refusal()
        with (tmp_path / "a.bin").open("wb") as file:
            numpy.savez(file, tokens)
        assert "a.bin: is a zip archive, as NumPy's .npz is" in refusal()
        tokens.tofile(tmp_path / "a.bin")
        if kind != "<u2":
            assert f"likely of {8 * tokens.itemsize}-bit integers, want 16-bit ones" in refusal()


def test_nothing_of_a_spec_is_left_out(tmp_path):
    write_spec(tmp_path)
    spec = (tmp_path / "spec.json").read_bytes()
    for text, message in [
        (spec + b"\0{}", ": not JSON: a byte 0, want none in a text"),
        (spec.replace(b'"corpus.txt"', b'"corpus.txt\\u0000.old"'), "want text without the character U+0000"),
        (
            re.sub(rb'"seed": \d+', b'"seed": 9007199254740993.0', spec),
            "want an integer without a point or an exponent",
        ),
    ]:
        (tmp_path / "spec.json").write_bytes(text)
        assert message in run("validate", "spec.json", cwd=tmp_path, expect=2).err
