# SPDX-License-Identifier: Apache-2.0
"""Export for W&B: to a double of its client, and to the client itself where it is installed."""

import math
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest
from synthetic import bernoulli, write_sweep

from droptest.__main__ import main
from droptest.wandb_export import export, flat, hyperparameters


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
    assert groups == {"model: bernoulli, loss_rate: 0.05", "model: bernoulli, loss_rate: 0.2"}
    assert {s.arguments["config"]["/network/loss/loss_rate"] for s in sessions} == {0.05, 0.2}
    for session in sessions:
        assert session.arguments["id"] in ids and session.exit_code == 0
        assert session.logged[200]["train_loss"] > 0 and "step" not in session.logged[200]
        assert session.summary["validation/final_loss"] > 0
        assert session.summary["realised_rate/tp_forward"] > 0


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


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_the_client_itself_writes_offline_runs(sweep, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    ids = export(sweep, tmp_path / "out")
    assert len(list((tmp_path / "out/wandb").glob("offline-run-*/run-*.wandb"))) == len(ids)
