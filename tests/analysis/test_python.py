# SPDX-License-Identifier: Apache-2.0
"""The package as a script uses it: runs, sweeps, fates, numbers, CSV files, and the example of docs/python.md."""

import json
import os
import re
import subprocess
import sys

import pandas as pd
import pytest
from synthetic import NONE, PACKAGES, ROOT, bernoulli

import droptest
from droptest import commands

BINARY = os.environ.get("DROPTEST_BINARY", str(ROOT / "build/dev/experiments/droptest"))
with_binary = pytest.mark.skipif(not os.path.exists(BINARY), reason=f"no {BINARY}: set DROPTEST_BINARY")
TINY = {
    "name": "tiny",
    "model": {"preset": "nano", "layers": 1, "width": 16, "heads": 2, "context": 16},
    "data": {"text": "corpus/kjv.txt"},
    "parallel": {"tensor": 2},
    "network": {"path": "direct", "payload_bytes": 64, "loss": bernoulli(0.1)},
    "training": {"steps": 2, "batch_sequences": 1},
    "validation": {"every_steps": 2, "tokens": 64},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DROPTEST_BINARY", BINARY)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/kjv.txt").write_text("In the beginning God created the heaven and the earth. " * 4000)
    return tmp_path


@with_binary
def test_a_run_is_trained_and_loaded(folder):
    records = droptest.run(TINY, values={"/training/steps": 3})
    assert records.runs["status"].tolist() == ["completed"]
    assert records.metrics["step"].max() == 3 and (folder / "results/tiny").is_dir()
    (folder / "spec.json").write_text(json.dumps(TINY))
    again = droptest.run("spec.json", "elsewhere", {"/training/steps": 3})
    assert again.runs["final_validation_loss"].tolist() == records.runs["final_validation_loss"].tolist()


@with_binary
def test_a_sweep_is_trained_and_loaded(folder):
    spec = TINY | {"sweep": {"cross": {"/network/loss": [NONE, bernoulli(0.2)]}}}
    records = droptest.sweep(spec, jobs=1)
    points = droptest.points(records)
    assert points["loss_rate"].tolist() == [0.0, 0.2]
    assert points["/network/loss"].tolist() == ["lossless", "Bernoulli 20 %"]
    assert points["realised_rate"][1] == pytest.approx(0.2, abs=0.1)
    assert records.path.resolve() == folder / "results/tiny"


@with_binary
def test_what_the_command_refuses_is_an_error_with_its_message(folder):
    with pytest.raises(droptest.CommandError, match=r'exit status 2.*no member "stepz" in /training'):
        droptest.run(TINY, values={"/training/stepz": 3})
    with pytest.raises(droptest.CommandError, match="loss_rate"):
        droptest.fates({"model": "bernoulli", "loss_rate": 1.5}, 10)


@with_binary
def test_fates_are_those_of_the_command(folder):
    loss = {"model": "gilbert_elliott", "loss_rate": "20%", "mean_burst_packets": 4}
    lost = droptest.fates(loss, 5000, first=100, seed=7, source=1, destination=0, half="gather")
    assert (lost.index[0], len(lost), lost.dtype) == (100, 5000, bool)
    words = ["fates", "--loss", json.dumps(loss), "--seed", "7", "--class", "tp_forward", "--src", "1", "--dst", "0",
             "--half", "gather", "--first", "100", "--count", "5000", "--format", "json"]  # fmt: skip
    counted = json.loads(subprocess.run([BINARY, *words], capture_output=True, check=True, text=True).stdout)
    assert lost.sum() == counted["lost"]
    assert (lost & ~lost.shift(fill_value=False)).sum() == counted["bursts"]
    # A window of the same link has the same fates, another link has others.
    assert lost[300:400].equals(droptest.fates(loss, 5000, seed=7, source=1, destination=0, half="gather")[400:500])
    assert not lost.equals(droptest.fates(loss, 5000, first=100, seed=7, source=0, destination=1, half="gather"))


def test_the_command_is_found_by_variable_path_or_build_folder(tmp_path, monkeypatch):
    def program(folder):
        folder.mkdir(parents=True)
        (folder / "droptest").write_text("#!/bin/sh\n")
        (folder / "droptest").chmod(0o755)
        return folder / "droptest"

    monkeypatch.setattr(commands, "__file__", str(tmp_path / "tree/analysis/droptest/commands.py"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("DROPTEST_BINARY", raising=False)
    with pytest.raises(
        droptest.CommandError, match=r"DROPTEST_BINARY is not set, PATH has no droptest, and .*tree/build"
    ):
        droptest.binary()
    old, new = (program(tmp_path / "tree/build" / name / "experiments") for name in ("dev", "release"))
    os.utime(old, (1, 1))
    assert droptest.binary() == new
    on_path = program(tmp_path / "bin")
    assert droptest.binary() == on_path
    monkeypatch.setenv("DROPTEST_BINARY", str(old))
    assert droptest.binary() == old
    monkeypatch.setenv("DROPTEST_BINARY", str(tmp_path / "nothing"))
    with pytest.raises(droptest.CommandError, match=r"DROPTEST_BINARY: got .*nothing"):
        droptest.binary()


def test_points_are_the_summary_in_numbers(mixed):
    points = droptest.points(droptest.load(mixed)).set_index("loss_rate")
    # synthetic: 2 + 0.5 seed + rate (1 + 0.1 seed); at 1 % seed 3 failed.
    assert points["final_mean"][0.0] == pytest.approx(3.0)
    assert (points["final_high"] - points["final_low"])[0.0] == pytest.approx(2 * 4.30265 * 0.5 / 3**0.5, rel=1e-5)
    assert points["difference_mean"][0.01] == pytest.approx(0.0115)
    assert points["difference_high"][0.01] - 0.0115 == pytest.approx(12.7062 * 0.0005, rel=1e-4)
    assert points[["runs", "completed", "diverged", "failed", "difference_seeds"]].loc[0.01].tolist() == [3, 2, 0, 1, 2]
    assert points["diverged"].tolist() == [0, 0, 0, 1, 3]
    assert points["configured_rate"][0.4] == pytest.approx(0.4)


def test_every_frame_and_the_points_are_written_as_csv(mixed, tmp_path):
    records = droptest.load(mixed)
    paths = records.to_csv(tmp_path / "tables")
    names = {path.stem for path in paths}
    assert {"runs", "metrics", "loss_statistics", "bursts", "layers", "gaps", "points"} <= names
    assert "links" not in names and "time" not in names  # without rows
    metrics = pd.read_csv(tmp_path / "tables/metrics.csv")
    assert len(metrics) == len(records.metrics)
    assert metrics["train_loss"].sum() == pytest.approx(records.metrics["train_loss"].sum())
    assert set(metrics["/network/loss"]) == set(records.runs.loc[records.runs["status"] != "missing", "/network/loss"])


@with_binary
def test_the_example_runs_and_prints_what_the_page_shows(folder):
    program = (PACKAGES / "examples/bursts.py").read_text()
    for old, new in (('"steps": 60', '"steps": 2'), ('"seeds": 3', '"seeds": 2'), ('"tensor": 4', '"tensor": 2')):
        assert old in program
        program = program.replace(old, new)
    environment = os.environ | {"PYTHONPATH": str(PACKAGES)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    output = re.search(r"^```\n( +series.+?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL | re.MULTILINE)[1]

    def words(line):
        return [re.sub(r"^-?[\d.,]+$|^-$|^nan$", "0", word) for word in line.replace(",", "").split()]

    assert [words(line) for line in done.stdout.splitlines()] == [words(line) for line in output.splitlines()]
    tables = folder / "results/bursts/tables"
    assert len(pd.read_csv(tables / "final_loss.csv")) == 4 and (folder / "results/bursts/final_loss.png").is_file()
