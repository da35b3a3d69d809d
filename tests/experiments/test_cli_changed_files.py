# SPDX-License-Identifier: Apache-2.0
"""Runs whose data or weights change between attempts: no attempt trains on with another content."""

import hashlib
import random
import shutil

import numpy as np
import pytest
from cli_harness import metrics_of, run, run_folders, start, summary_of, write_corpus, write_spec
from holds import kill

TRAINING = {"steps": 12, "batch_sequences": 4, "learning_rate": 0.01, "warmup_steps": 2}
CHECKPOINT = {"every_steps": 2, "async": False}
GLOO = {"backend": {"name": "gloo", "timeout_seconds": 60}, "restart": {"attempts": 3, "backoff_seconds": 0}}


def require_gloo(folder):
    if "gloo (not built)" in run("info", cwd=folder).out:
        pytest.skip("the gloo backend was not built")


def hash_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def put(path, content):
    """Another file takes the name, as an editor does it."""
    new = path.with_name("new")
    new.write_bytes(content)
    new.rename(path)


@pytest.mark.parametrize("command", ["run", "sweep"])
@pytest.mark.parametrize("parallel", [{"tensor": 2}, {"tensor": 1, "data": 2}])
def test_an_attempt_after_a_death_does_not_train_on_with_another_text(tmp_path, holds, command, parallel):
    require_gloo(tmp_path)
    elastic = {"elastic": {}} if "data" in parallel else {}
    write_spec(tmp_path, training=TRAINING, checkpoint=CHECKPOINT, parallel=parallel, **GLOO, **elastic)
    corpus = tmp_path / "corpus.txt"
    content, recorded = corpus.read_bytes(), hash_of(corpus)
    holds.at("step-6")
    process = start(command, "spec.json", cwd=tmp_path, environment=holds.environment)
    ranks = dict(holds.reached("step-6", 2))
    put(corpus, content.swapcase())
    other = hash_of(corpus)
    kill(ranks[1])
    holds.release("step-6")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 1, out + err
    (folder,) = run_folders(tmp_path)
    summary = summary_of(folder)
    assert summary["status"] == "failed"
    assert f'/data/sha256: got "{recorded}", but corpus.txt has "{other}"' in summary["error"]
    assert max(line["step"] for line in metrics_of(folder)) < 12
    if command == "run":
        assert "attempt 2 of 4" in err and "no further attempt" in err and "attempt 3 of 4" not in err
    # With the recorded content the run goes on.
    put(corpus, content)
    run(command, "spec.json", cwd=tmp_path)
    assert summary_of(folder)["status"] == "completed" and summary_of(folder)["resumed_at"]


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_rank_that_finds_its_text_written_into_ends_the_attempts(tmp_path, holds, command):
    require_gloo(tmp_path)
    write_spec(tmp_path, training=TRAINING, checkpoint=CHECKPOINT, **GLOO)
    holds.at("step-6")
    process = start(command, "spec.json", cwd=tmp_path, environment=holds.environment)
    holds.reached("step-6", 2)
    with (tmp_path / "corpus.txt").open("r+b") as corpus:
        corpus.write(b"THE QUICK")
    holds.release("step-6")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 1, out + err
    (folder,) = run_folders(tmp_path)
    assert summary_of(folder)["status"] == "failed" and "changed since it was opened" in summary_of(folder)["error"]
    assert "attempt 2 of 4" not in err


def test_a_copy_with_the_recorded_content_is_trained_on(tmp_path, holds):
    require_gloo(tmp_path)
    write_spec(tmp_path, training=TRAINING, checkpoint=CHECKPOINT, **GLOO)
    holds.at("step-6")
    process = start("run", "spec.json", cwd=tmp_path, environment=holds.environment)
    ranks = dict(holds.reached("step-6", 2))
    put(tmp_path / "corpus.txt", (tmp_path / "corpus.txt").read_bytes())
    kill(ranks[1])
    holds.release("step-6")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0 and "attempt 2 of 4" in err, out + err


def text(folder):
    write_spec(folder, training=TRAINING, checkpoint=CHECKPOINT, parallel={"tensor": 1})
    return folder / "corpus.txt", "/data/sha256", bytes.swapcase


def tokens(folder):
    draw = random.Random(3)
    np.array([draw.randrange(256) for _ in range(9000)], np.uint16).tofile(folder / "corpus.bin")
    data = {"tokens": "corpus.bin", "format": "uint16"}
    write_spec(folder, training=TRAINING, checkpoint=CHECKPOINT, parallel={"tensor": 1}, data=data)
    return folder / "corpus.bin", "/data/sha256", lambda content: np.frombuffer(content, np.uint16)[::-1].tobytes()


def examples(file):
    def write(folder):
        for name in ("train.tsv", "dev.tsv"):
            lines = [f"{label}\tthe {label} {i}" for i in range(40) for label in ("sea", "land")]
            (folder / name).write_text("\n".join(["label\ttext", *lines, f"sea\t{name}"]) + "\n")
        data = {"examples": "train.tsv", "validation_examples": "dev.tsv"}
        write_spec(folder, task="classification", training=TRAINING, checkpoint=CHECKPOINT, data=data,
                   parallel={"tensor": 1}, validation={"every_steps": 6})  # fmt: skip
        member = "sha256" if file == "train.tsv" else "validation_sha256"
        return folder / file, f"/data/{member}", lambda content: content.replace(b"the ", b"no ")

    return write


def weights(folder):
    write_spec(folder, "begin.json", parallel={"tensor": 1}, record={"weights": "final"})
    run("run", "begin.json", "--out", "begin", cwd=folder)
    (begin,) = run_folders(folder, out="begin")
    shutil.copy(begin / "weights.safetensors", folder / "begin.safetensors")
    model = {"layers": 1, "width": 32, "heads": 4, "context": 32, "vocabulary": 256, "weights": "begin.safetensors"}
    write_spec(folder, training=TRAINING, checkpoint=CHECKPOINT, parallel={"tensor": 1}, model=model)
    return folder / "begin.safetensors", "/model/sha256", lambda content: content[:-4] + b"\0\0\0\0"


def shards(folder):
    (folder / "corpus").mkdir()
    for i, size in enumerate((6000, 3000, 9000)):
        write_corpus(folder / "corpus" / f"part_{i}.txt", size)
    training = {"epochs": 1, "batch_sequences": 4, "learning_rate": 0.01}
    data = {"shards": "corpus/part_*.txt", "format": "text"}
    write_spec(folder, training=training, checkpoint=CHECKPOINT, parallel={"tensor": 1}, network={}, data=data)
    return folder / "corpus/part_1.txt", "/data/files/1/sha256", bytes.swapcase


@pytest.mark.parametrize(
    "write",
    [text, tokens, examples("train.tsv"), examples("dev.tsv"), weights, shards],
    ids=["text", "tokens", "examples", "validation examples", "weights", "shards"],
)
def test_resume_refuses_another_content_and_goes_on_with_the_recorded_one(tmp_path, holds, write):
    file, pointer, changed = write(tmp_path)
    content, recorded = file.read_bytes(), hash_of(file)
    holds.at("step-6")
    process = start("run", "spec.json", cwd=tmp_path, environment=holds.environment)
    holds.reached("step-6", 1)
    kill(process.pid)
    process.communicate()
    holds.release("step-6")
    (folder,) = run_folders(tmp_path)
    put(file, changed(content))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for at in ((), ("--at", "2")):
        refused = run("resume", folder.relative_to(tmp_path), *at, cwd=tmp_path, expect=2).err
        name = file.relative_to(tmp_path)
        assert f'spec.json: {pointer}: got "{recorded}", but {name} has "{hash_of(file)}"' in refused
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}, "nothing was touched"
    put(file, content)
    run("resume", folder.relative_to(tmp_path), cwd=tmp_path)
    assert summary_of(folder)["status"] == "completed" and summary_of(folder)["resumed_at"]


def test_a_finished_run_needs_no_data_to_say_that_it_is_finished(tmp_path):
    write_spec(tmp_path, training=TRAINING)
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    (tmp_path / "corpus.txt").unlink()
    assert "nothing to do" in run("resume", folder, cwd=tmp_path).out
