# SPDX-License-Identifier: Apache-2.0
"""Export for W&B: to a double of its client, and to the client itself where it is installed."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from synthetic import NONE, bernoulli, write_json, write_sweep

from droptest.__main__ import main
from droptest.wandb_export import export, flat, hyperparameters

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / ".cache/wandb"  # from scripts/install-dependencies


class Session:
    def __init__(self, arguments):
        self.arguments, self.logged, self.summary, self.exit_code = arguments, {}, {}, None

    def log(self, values, step):
        assert self.exit_code is None
        self.logged[step] = values

    def finish(self, exit_code):
        self.exit_code = exit_code


@pytest.fixture
def sessions(monkeypatch):
    found = []
    module = ModuleType("wandb")

    def init(**arguments):
        assert all(session.exit_code is not None for session in found), "one run at a time"
        found.append(Session(arguments))
        return found[-1]

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return found


@pytest.fixture
def sweep(tmp_path):
    return write_sweep(tmp_path, {"/network/loss": [bernoulli("5%"), bernoulli("20%")]}, name="rates")


def test_each_run_is_a_session_of_its_points_group(sweep, sessions, tmp_path):
    ids = export(sweep, tmp_path / "out")
    assert len(sessions) == len(ids) == len(set(ids)) >= 2
    assert {s.arguments["mode"] for s in sessions} == {"offline"}
    assert {s.arguments["project"] for s in sessions} == {"rates"}
    groups = {s.arguments["group"] for s in sessions}
    assert groups == {"loss: Bernoulli 5 %", "loss: Bernoulli 20 %"}
    assert {s.arguments["config"]["/network/loss/loss_rate"] for s in sessions} == {0.05, 0.2}
    for session in sessions:
        assert session.arguments["id"] in ids and session.exit_code == 0
        assert session.logged[200]["train_loss"] > 0 and "step" not in session.logged[200]
        assert session.summary["validation/final_loss"] > 0
        assert session.summary["realised_rate/tp_forward"] > 0


def test_runs_whose_lines_cannot_be_read_are_left_out(sweep, sessions, tmp_path):
    first, second, *_ = sorted(sweep.glob("*/metrics.jsonl"))
    first.write_text('no JSON\n{"step": 1}\n')
    second.unlink()
    assert len(export(sweep, tmp_path / "out")) == len(list(sweep.glob("*/summary.json"))) - 2


def test_groups_tell_the_losses_of_two_places_apart(sessions, tmp_path):
    cross = {"/network/reduce/loss": [NONE, bernoulli(0.1)], "/network/gather/loss": [NONE, bernoulli(0.1)]}
    export(write_sweep(tmp_path, cross, seeds=1), tmp_path / "out")
    groups = {s.arguments["group"] for s in sessions}
    assert len(groups) == 4 and "reduce/loss: no loss, gather/loss: no loss" in groups


def test_groups_have_the_names_and_the_order_of_the_sweep(sessions, tmp_path):
    """The same names for each run, whatever members its values have."""
    cross = {"/network/loss": [NONE, bernoulli(0.1)], "/network/fill": ["zero", "own"]}
    folder = write_sweep(tmp_path, cross, seeds=1)
    record = json.loads((folder / "sweep.json").read_text())
    write_json(folder / "sweep.json", record | {"names": [{"pointer": "/network/loss", "name": "network/loss"},
                                                          {"pointer": "/network/fill", "name": "fill"}]})  # fmt: skip
    export(folder, tmp_path / "out")
    assert {"network/loss: Bernoulli 10 %, fill: zero", "network/loss: Bernoulli 10 %, fill: own"} < {
        s.arguments["group"] for s in sessions
    }


def test_the_command_says_where_the_runs_are(sweep, sessions, capsys):
    assert main(["wandb", str(sweep)]) == 0
    assert f"wandb sync {sweep}/wandb/offline-run-*" in capsys.readouterr().out
    assert main(["wandb", str(sweep / "absent")]) == 2


def test_a_missing_client_is_an_error_that_says_so(sweep, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["wandb", str(sweep)]) == 2
    assert "pip install wandb" in capsys.readouterr().err


def test_numbers_and_hyperparameters_are_flat():
    line = {"a": {"b": 1, "c": [2.5, None]}, "d": "text", "e": True}
    assert dict(flat(line)) == pytest.approx({"a/b": 1, "a/c/0": 2.5, "a/c/1": math.nan}, nan_ok=True)
    point = {"/x": {"rate": "9%", "kind": "50% more", "deep": {"n": 1}}, "/y": [1]}
    assert dict(hyperparameters(point)) == {"/x/rate": 0.09, "/x/kind": "50% more", "/x/deep/n": 1, "/y": [1]}


# Prints, for each file of the client, what it wrote: the id of the run, its group, and its lines.
READER = """
import json, sys
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore

for name in sys.argv[1:]:
    store, found = DataStore(), {"lines": []}
    store.open_for_scan(name)
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            found |= {"id": record.run.run_id, "group": record.run.run_group}
        if record.WhichOneof("record_type") == "history":
            names = [item.key or "/".join(item.nested_key) for item in record.history.item]
            found["lines"].append(dict(zip(names, (json.loads(item.value_json) for item in record.history.item))))
    print(json.dumps(found))
"""


@pytest.mark.skipif(not CLIENT.exists(), reason="W&B's client is not installed")
def test_the_client_itself_writes_equal_values(sweep, tmp_path):
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'analysis'}:{CLIENT}", "WANDB_SILENT": "true"}

    def python(*arguments):
        done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "wandb sync" in python("-m", "droptest", "wandb", sweep, "--out", tmp_path / "out")
    files = sorted((tmp_path / "out/wandb").glob("offline-run-*/run-*.wandb"))
    written = {run["id"]: run for run in map(json.loads, python("-c", READER, *files).splitlines())}
    assert len(written) == len(files) == len(list(sweep.glob("*/summary.json")))
    for record in sweep.glob("*/summary.json"):
        run = written[json.loads(record.read_text())["run_id"]]
        lines = [json.loads(line) for line in (record.parent / "metrics.jsonl").read_text().splitlines()]
        assert [(line["_step"], line["train_loss"]) for line in run["lines"] if "train_loss" in line] == [
            (line["step"], line["train_loss"]) for line in lines if "train_loss" in line
        ]
        assert run["group"].startswith("loss: Bernoulli")
