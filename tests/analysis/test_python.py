# SPDX-License-Identifier: Apache-2.0
"""The package as a script uses it: runs, sweeps, fates, numbers, CSV files, and the example of docs/python.md."""

import enum
import json
import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
from synthetic import NONE, PACKAGES, ROOT, bernoulli

import droptest
from droptest import program as program_of
from droptest.json_values import UnusableValue, json_text

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
def test_a_spec_may_have_values_of_numpy_and_paths(folder):
    spec = TINY | {
        "model": TINY["model"] | {"layers": np.int64(1), "width": np.uint8(16)},
        "data": {"text": Path("corpus/kjv.txt"), "validation_fraction": np.float64(0.25)},
        "network": TINY["network"] | {"loss": bernoulli(np.float32(0.125))},
        "parallel": MappingProxyType({"tensor": np.array(2)}),
        "sweep": {"cross": {"/training/learning_rate": np.array([0.5, 0.25]) / 512}},
    }
    records = droptest.sweep(spec, values={"/training/steps": np.int32(3), "/training/beta1": np.float64(0.5)}, jobs=1)
    plain = json.loads(json.dumps(TINY)) | {"data": {"text": "corpus/kjv.txt", "validation_fraction": 0.25}}
    plain["network"]["loss"] = bernoulli(0.125)
    plain["sweep"] = {"cross": {"/training/learning_rate": [0.5 / 512, 0.25 / 512]}}
    again = droptest.sweep(plain, values={"/training/steps": 3, "/training/beta1": 0.5}, jobs=1)
    assert records.runs["run_id"].tolist() == again.runs["run_id"].tolist() and len(again.runs) == 2
    assert set(records.runs["status"]) == {"completed"}


def test_every_kind_of_number_list_and_text_is_its_json():
    kinds = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
    rng = np.random.default_rng(3)
    for kind in kinds:
        for shape in ((), (3,), (2, 0), (2, 3)):
            array = (rng.random(shape) * 100).astype(kind)
            assert json.loads(json_text({"a": array})) == {"a": array.tolist()}
        number = np.dtype(kind).type(7)
        assert json_text([number, (number,)]) == json.dumps([number.item(), [number.item()]])
        if kind.startswith(("int", "uint")):
            for extreme in (np.iinfo(kind).min, np.iinfo(kind).max):
                assert json_text(np.dtype(kind).type(extreme)) == str(extreme)
    assert json_text([np.True_, np.bool_(False), True, None]) == "[true, false, true, null]"
    assert json_text([np.str_("é"), PurePosixPath("a/b"), "c"]) == '["\\u00e9", "a/b", "c"]'
    assert json_text(pd.Series([1, 2])) == json_text(pd.Index([1, 2])) == "[1, 2]"
    assert json_text(np.float32(0.1)) == "0.10000000149011612"


Precision = enum.Enum("Precision", {"BF": "bfloat16"}, type=str)


class Factor(float, enum.Enum):
    HALF = 0.5
    NONE = float("nan")


class Width(int, enum.Enum):
    NARROW = 16


class Plain(enum.IntEnum):
    TWO = 2


class Shouting(str):
    def __str__(self):
        return self.upper()


def test_members_of_enumerations_of_texts_and_numbers_are_their_values():
    members = {Precision.BF: [Precision.BF, Factor.HALF, Width.NARROW, Plain.TWO, Shouting("a")]}
    assert json_text(members) == '{"bfloat16": ["bfloat16", 0.5, 16, 2, "a"]}'
    assert json_text(Precision.BF) == '"bfloat16"'
    with pytest.raises(UnusableValue, match=re.escape("/bfloat16: got nan, want a finite number")):
        json_text({Precision.BF: Factor.NONE})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"model": {"width": {16}}}, "/model/width: got {16} (set), want an object"),
        ({"a": [1, np.float64("nan")]}, "/a/1: got nan, want a finite number"),
        ({"a": np.array([1.0, np.inf])}, "/a/1: got inf, want a finite number"),
        ({"a": {1: 2}}, "/a: got the key 1 (int), want a text"),
        ({None: 2}, "the object: got the key None (NoneType), want a text"),
        ({"a/b": {"c~d": 1j}}, "/a~1b/c~0d: got 1j (complex), want"),
        ({"a": np.complex64(1)}, "/a: got (1+0j) (complex64), want"),
        ({"a": np.datetime64("2020-01-01")}, "/a: got numpy.datetime64('2020-01-01') (datetime64), want"),
        ({"a": np.longdouble(1)}, "/a: got 1.0 ("),
        ({"a": b"text"}, "/a: got b'text' (bytes), want"),
        ({"a": Path("\udcff")}, "want a text that is UTF-8"),
        ({"a": print}, "/a: got <built-in function print>"),
        ({"a": pd.Series([pd.Timestamp("2020-01-01")])}, "/a/0: got Timestamp"),
        ({"a": "x" * 100, "b": bytearray(100)}, "/b: got bytearray("),
    ],
)
def test_a_value_that_json_does_not_have_is_named(value, message):
    with pytest.raises(UnusableValue, match=re.escape(message)):
        json_text(value)
    with pytest.raises(droptest.CommandError, match=re.escape(message)):
        droptest.run(value)


def test_a_list_within_itself_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(UnusableValue, match="nested deeper than 64 levels"):
        json_text({"a": endless})


def test_a_value_of_set_and_of_a_loss_is_named():
    with pytest.raises(droptest.CommandError, match=re.escape("/training/steps: got {3} (set)")):
        droptest.run({}, values={"/training/steps": {3}})
    with pytest.raises(droptest.CommandError, match=re.escape("/loss_rate: got nan")):
        droptest.fates({"model": "bernoulli", "loss_rate": float("nan")}, 10)


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

    monkeypatch.setattr(program_of, "__file__", str(tmp_path / "tree/analysis/droptest/program.py"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("DROPTEST_BINARY", raising=False)
    with pytest.raises(
        droptest.CommandError, match=r"DROPTEST_BINARY is not set, PATH has no compiled droptest, and .*tree/build"
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
    of_pip = program(tmp_path / "venv/bin")
    of_pip.write_text("#!/venv/bin/python\nimport sys\nfrom droptest.__main__ import command\nsys.exit(command())\n")
    monkeypatch.setenv("DROPTEST_BINARY", str(of_pip))
    with pytest.raises(droptest.CommandError, match="the command of the Python package, want the compiled one"):
        droptest.binary()
    monkeypatch.delenv("DROPTEST_BINARY")
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, (of_pip.parent, on_path.parent))))
    assert droptest.binary() == on_path
    monkeypatch.setenv("PATH", str(of_pip.parent))
    assert droptest.binary() == new

    def refused(*_):
        raise PermissionError

    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setattr(program_of.Path, "open", refused)  # a program that may be run, but not read
    assert droptest.binary() == on_path


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
