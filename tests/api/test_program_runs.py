# SPDX-License-Identifier: Apache-2.0
"""Losses that a program logs are the records of a run, which all readers take."""

import fcntl
import gc
import json
import math
import os
import re
import socket
import subprocess
import sys
import weakref
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import droptest
from droptest import program_run
from droptest.__main__ import main
from droptest.program_run import outcome_of

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ("DROPTEST_RUN_FOLDER", "DROPTEST_WEIGHTS_SEED", "DROPTEST_DATA_SEED", "DROPTEST_NETWORK_SEED")


@pytest.fixture(autouse=True)
def _no_sweep(monkeypatch):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def network(folder, loss=None, rank=0, world_size=1, seed=7, **section):
    loss = {"model": "bernoulli", "loss_rate": "5%"} if loss is None else loss
    source = {"network": {"loss": loss, **section}, "seed": seed, "statistics": str(folder)}
    return droptest.Network(source, rank=rank, world_size=world_size)


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def read(folder, name):
    return json.loads((folder / name).read_text())


def check(name, value):
    printed = subprocess.run([os.environ["DROPTEST_BINARY"], "schema", name], capture_output=True, check=True).stdout
    jsonschema.validate(value, json.loads(printed))


def test_lines_have_the_members_of_runs_and_numbers_that_are_not_finite_are_null(tmp_path):
    with network(tmp_path / "run") as one:
        one.log(1, training_loss=np.float32(2.5), tokens=np.int64(100), learning_rate=1e-3, my_number=3)
        first = lines_of(tmp_path / "run")
        assert len(first) == 1  # written at once
        one.log(np.int64(3), training_loss=math.inf, validation_loss=np.array([2.25]), gradient_norm=math.nan)
    first, second = lines_of(tmp_path / "run")
    assert 0 < first["seconds"] < second["seconds"]
    assert list(first) == ["step", "tokens", "seconds", "train_loss", "learning_rate", "my_number"]
    del first["seconds"], second["seconds"]
    assert first == {"step": 1, "tokens": 100, "train_loss": 2.5, "learning_rate": 1e-3, "my_number": 3}
    assert second == {"step": 3, "train_loss": None, "validation_loss": 2.25, "gradient_norm": None}
    for line in lines_of(tmp_path / "run"):
        check("metrics", line)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"step": 5}, "step: got 5, want more than 5, the last one logged"),
        ({"step": -1}, "step: got -1, want an integer from 0 on"),
        ({"step": 6.0}, "step: got 6.0, want an integer from 0 on"),
        ({"step": True}, "step: got True, want an integer from 0 on"),
        ({"training_loss": "2.5"}, "training_loss: got '2.5' (str), want a number"),
        ({"validation_loss": np.ones(2)}, "validation_loss: got array([1., 1.]) (ndarray), want a number"),
        ({"validation_loss": True}, "validation_loss: got True (bool), want a number"),
        ({"tokens": 1.5}, "tokens: got 1.5, want an integer from 0 on"),
        ({"columns": {"eval/loss": 1}}, "'eval/loss': got this name of a column, want letters, digits and _"),
        ({"columns": {"1st": 1}}, "'1st': got this name of a column"),
        ({"columns": {"mine": None}}, "mine: got None (NoneType), want a number"),
        ({"columns": {"train_loss": 1}}, "train_loss: got a column of this name, want training_loss=..."),
        ({"columns": {"seconds": 1}}, "seconds: got a column of this name, want none: the network measures them"),
        ({"columns": {"losses": 1}}, "losses: got a column of this name, want another name: records have this one"),
        ({"columns": {"loss_rate": 1}}, "loss_rate: got a column of this name, want another name"),
        ({"columns": {"replicas": 0}}, "replicas: got 0, want an integer from 1 on"),
        ({"columns": {"loss_scale": -1.0}}, "loss_scale: got -1.0, want a number from 0 on"),
    ],
)
def test_a_mistake_names_the_rank_the_argument_and_what_is_allowed(tmp_path, arguments, text):
    arguments = {"step": 6, **arguments}
    for rank in range(2):
        one = network(tmp_path, rank=rank, world_size=2)
        one.log(5, training_loss=1)
        columns = arguments.get("columns", {})
        given = {name: value for name, value in arguments.items() if name != "columns"}
        with pytest.raises(droptest.NetworkError, match=re.escape(f"rank {rank} of 2: log: {text}")) as caught:
            one.log(**given, **columns)
        assert caught.value.kind == "argument"
        one.close()
    assert [line["step"] for line in lines_of(tmp_path)] == [5]  # of rank 0 alone


def test_the_names_that_log_checks_are_those_of_the_schema():
    members = json.loads((ROOT / "experiments/schema/metrics.schema.json").read_text())["properties"]
    own = {"step", "tokens", "train_loss", "validation_loss"}
    known = program_run.KNOWN_NUMBERS | program_run.KNOWN_INTEGERS
    assert set(members) - own - set(known) <= set(program_run.TAKEN)
    assert {name: members[name].get("minimum") for name in known} == known
    integers = {name for name in known if members[name]["type"] == "integer"}
    assert integers == set(program_run.KNOWN_INTEGERS)


def test_without_a_folder_the_error_says_how_to_give_one():
    one = droptest.Network({"network": {"loss": {"model": "none"}}}, rank=0, world_size=1)
    for call in (lambda: one.log(1, training_loss=1), one.finish):
        with pytest.raises(droptest.NetworkError, match='want "statistics": "results/mine/lossy_1" beside "network"'):
            call()
    one.close()


def test_calls_after_the_end_are_errors(tmp_path):
    one = network(tmp_path / "run")
    one.finish(validation_loss=2)
    for call in (lambda: one.log(1, training_loss=1), one.finish):
        with pytest.raises(droptest.NetworkError, match=r"got a call after finish\(\)"):
            call()
    one.close()
    with pytest.raises(droptest.NetworkError, match="network: got a closed one"):
        one.log(1, training_loss=1)


def test_a_finished_program_has_a_spec_and_a_summary_as_runs_have_them(tmp_path):
    folder = tmp_path / "mine" / "lossy_1"
    with network(folder, fill="count_rescale") as one:
        one.flow("dp_gradient").lose(np.ones(35200, np.float32))
        for step in range(1, 21):
            one.log(step, training_loss=10 - 0.25 * step, tokens=100 * step)
        one.finish(validation_loss=4.5, validation_tokens=64, settings={"learning_rate": np.float64(0.5), "name": "a"},
                   seeds={"weights": 3, "data": 4})  # fmt: skip
    spec, summary = read(folder, "spec.json"), read(folder, "summary.json")
    classes = read(folder, "loss_statistics.json")["network"]["classes"]
    assert list(classes) == ["dp_gradient"]
    assert spec == {"name": "mine", "seeds": {"weights": 3, "data": 4, "network": 7}, "network": {"classes": classes},
                    "settings": {"learning_rate": 0.5, "name": "a"}}  # fmt: skip
    check("summary", summary)
    for line in lines_of(folder):
        check("metrics", line)
    last = lines_of(folder)[-1]
    assert last == {"step": 20, "tokens": 2000, "seconds": last["seconds"], "validation_loss": 4.5}
    assert summary["train"] == {"final_loss": 10 - 0.25 * 15.5}
    assert summary["validation"] == {"final_loss": 4.5, "best_loss": 4.5, "tokens": 64}
    assert (summary["steps"], summary["tokens"], summary["status"]) == (20, 2000, "completed")
    assert summary["seconds"] == last["seconds"] and summary["tokens_per_second"] == 2000 / last["seconds"]
    assert summary["seeds"] == spec["seeds"] and "seed" not in summary
    assert summary["point"] == {"/network/loss": {"model": "bernoulli", "loss_rate": "5%"},
                                "/network/fill": "count_rescale", "/settings/learning_rate": 0.5,
                                "/settings/name": "a"}  # fmt: skip
    assert summary["loss"] == {"dp_gradient": {
        "reduce": {"model": "bernoulli", "loss_rate": 0.05, "mean_burst_packets": pytest.approx(1 / 0.95, rel=1e-12)},
        "gather": {"model": "none", "loss_rate": 0, "mean_burst_packets": 0}}}  # fmt: skip
    assert summary["twin_omits"] == ["/name", "/network", "/seeds/network"]
    assert summary["provenance"]["version"] == droptest.__version__
    assert set(summary["provenance"]["libraries"]) >= {"Python", "numpy"}


def test_the_run_id_is_that_of_the_spec_without_its_name(tmp_path):
    ids = []
    for folder, settings in (("a/one", {}), ("b/two", {}), ("a/three", {"x": 1})):
        with network(tmp_path / folder) as one:
            one.finish(validation_loss=2, settings=settings)
        ids.append(read(tmp_path / folder, "summary.json")["run_id"])
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize(
    ("arguments", "environment", "seeds"),
    [
        ({}, {}, (7, 7)),
        ({"seed": 3}, {}, (3, 3)),
        ({"seeds": {"data": 4}}, {}, (7, 4)),
        ({}, {"WEIGHTS": "5", "DATA": "6"}, (5, 6)),
        ({"seeds": {"data": 4}}, {"WEIGHTS": "5", "DATA": "6"}, (5, 4)),
    ],
)
def test_seeds_of_the_program_are_given_or_of_the_environment_or_the_networks(
    tmp_path, monkeypatch, arguments, environment, seeds
):
    for name, value in environment.items():
        monkeypatch.setenv(f"DROPTEST_{name}_SEED", value)
    with network(tmp_path / "run") as one:
        one.finish(validation_loss=2, **arguments)
    assert read(tmp_path / "run", "spec.json")["seeds"] == {"weights": seeds[0], "data": seeds[1], "network": 7}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"seed": 1, "seeds": {}}, "seed, seeds: got both, want one of them"),
        ({"seeds": {"network": 1}}, 'seeds: got {\'network\': 1}, want {"weights": 1, "data": 1}'),
        ({"seeds": {"data": -1}}, "seeds/data: got -1, want an integer from 0 on"),
        ({"settings": [1]}, "settings: got list, want names with values"),
        ({"settings": {"a": [1]}}, "settings/a: got [1], want a number, a text or a boolean"),
        ({"settings": {"a": None}}, "settings/a: got null, want a number, a text or a boolean"),
        ({"settings": {"a": math.inf}}, "settings/a: got inf, want a finite number"),
        ({"validation_tokens": -1}, "validation_tokens: got -1, want an integer from 0 on"),
        ({"step": 4}, "step: got 4, want 5, the last one logged, or more"),
        ({"unit": 3}, 'unit: got 3, want a text such as "nats per byte"'),
    ],
)
def test_a_mistake_in_finish_leaves_the_run_open(tmp_path, arguments, text):
    with network(tmp_path / "run") as one:
        one.log(5, training_loss=1)
        with pytest.raises(droptest.NetworkError, match=re.escape(f"rank 0 of 1: finish: {text}")):
            one.finish(**{"validation_loss": 2, **arguments})
        assert len(lines_of(tmp_path / "run")) == 1 and not (tmp_path / "run/summary.json").exists()
        one.finish()


def test_a_seed_of_the_environment_that_is_no_number_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("DROPTEST_DATA_SEED", "one")
    with network(tmp_path / "run") as one, pytest.raises(droptest.NetworkError, match="DROPTEST_DATA_SEED: got 'one'"):
        one.finish(validation_loss=2)
    assert not (tmp_path / "run/summary.json").exists()


def test_under_a_sweep_only_the_lines_are_written(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    spec = '{"name": "of the sweep", "model": {}}'
    (folder / "spec.json").write_text(spec)
    monkeypatch.setenv("DROPTEST_RUN_FOLDER", str(tmp_path / "." / "run"))
    with network(folder) as one:
        one.log(1, training_loss=2)
        one.finish(validation_loss=1.5, settings={"a": 1}, seed=3)
    assert (folder / "spec.json").read_text() == spec and not (folder / "summary.json").exists()
    assert [(line["step"], line.get("validation_loss")) for line in lines_of(folder)] == [(1, None), (1, 1.5)]


def test_only_rank_0_writes(tmp_path):
    folder = tmp_path / "run"
    with network(folder, rank=1, world_size=2) as one:
        one.log(1, training_loss=2)
        one.finish(validation_loss=1.5)
    assert sorted(file.name for file in folder.iterdir()) == ["loss_statistics.json", "ranks"]


def test_the_first_line_replaces_the_records_of_an_earlier_program(tmp_path):
    folder = tmp_path / "run"
    for steps in (3, 2):
        with network(folder) as one:
            for step in range(1, steps + 1):
                one.log(step, training_loss=steps)
                assert not (folder / "summary.json").exists() and not (folder / "spec.json").exists()
            one.finish()
    assert [(line["step"], line["train_loss"]) for line in lines_of(folder)] == [(1, 2), (2, 2)]
    with network(folder) as one:
        one.finish(validation_loss=2)
    assert [line.get("train_loss") for line in lines_of(folder)] == [None]


def test_a_resumed_program_goes_on_after_the_lines_before_its_first_step(tmp_path):
    folder = tmp_path / "run"
    states = []
    with network(folder) as one:
        for step in range(1, 6):
            one.log(step, training_loss=step)
            states.append(one.state_dict())
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "tr')  # killed
    before = lines_of_whole(folder)
    with network(folder) as one:
        one.load_state_dict(states[2])
        one.log(4, training_loss=40)
        one.finish(validation_loss=1)
    lines = lines_of(folder)
    assert lines[:3] == before[:3]
    assert [(line["step"], line.get("train_loss")) for line in lines[3:]] == [(4, 40), (4, None)]
    assert all(one["seconds"] < two["seconds"] for one, two in pairwise(lines))
    summary = read(folder, "summary.json")
    check("summary", summary)
    message = "went on after step 3, with the network's state of a checkpoint"
    assert summary["warnings"] == [{"pointer": "/network", "message": message, "mark": "resumed"}]
    assert list(droptest.load(folder).runs["marks"]) == ["resumed"]


def lines_of_whole(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().split("\n")[:-1]]


def test_the_folder_of_another_run_is_refused(tmp_path):
    (tmp_path / "spec.json").write_text('{"name": "a", "model": {}, "training": {}}')
    text = r"statistics: got .*, where another run has its spec.json"
    with network(tmp_path) as one, pytest.raises(droptest.NetworkError, match=text):
        one.log(1, training_loss=1)
    assert "model" in read(tmp_path, "spec.json") and not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("end", ["close", "finish"])
def test_a_program_holds_the_lock_of_its_folder_until_its_end(tmp_path, end):
    one = network(tmp_path / "run")
    one.log(1, training_loss=1)
    lock = tmp_path / "run/lock"
    assert lock.read_text() == f"process {os.getpid()} on host {socket.gethostname()}\n"
    with lock.open() as looks, pytest.raises(BlockingIOError):
        fcntl.flock(looks, fcntl.LOCK_EX | fcntl.LOCK_NB)
    getattr(one, end)()
    assert not lock.exists()
    one.close()


def test_a_folder_that_another_process_holds_is_refused(tmp_path):
    one = network(tmp_path / "run")
    with (tmp_path / "run/lock").open("w") as held:
        held.write("process 4711 on host node3\n")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        text = f"statistics: got {tmp_path / 'run'}, on which process 4711 on host node3 is at work; want a folder of"
        with pytest.raises(droptest.NetworkError, match=re.escape(text)):
            one.log(1, training_loss=1)
    one.log(1, training_loss=1)
    one.close()


def test_the_command_watches_a_program_before_its_end(tmp_path):
    words = [os.environ["DROPTEST_BINARY"], "watch", str(tmp_path / "mine"), "--once"]
    one = network(tmp_path / "mine/run")
    one.log(3, training_loss=1.5, my_number=1)
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert re.search("1 runs?: 1 running", out) and "1.5000" in out and "left out" not in out, out
    one.close()
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert re.search("1 runs?: 1 stopped", out), out


def test_a_run_with_loss_that_sends_nothing_is_no_result(tmp_path):
    """It would be shown as lossless, and as its own twin."""
    cases = {
        "silent": (None, False, "failed"),
        "lossy": (None, True, "completed"),
        "lossless": ({"model": "none"}, False, "completed"),
    }
    for name, (loss, sent, status) in cases.items():
        with network(tmp_path / "mine" / name, loss) as one:
            if sent:
                one.flow("dp_gradient").next(4000)
            if status == "failed":
                with pytest.warns(
                    UserWarning, match="rank 0 of 1: the network can lose packets, but the program has sent none"
                ):
                    one.finish(validation_loss=2)
            else:
                one.finish(validation_loss=2)
        summary = read(tmp_path / "mine" / name, "summary.json")
        check("summary", summary)
        assert summary["status"] == status and (summary["error"] is None) == (status == "completed")


def test_of_several_ranks_the_first_one_knows_only_its_own_packets(tmp_path):
    halves = {"classes": {"dp_gradient": {"gather": {"loss": {"model": "bernoulli", "loss_rate": 0.5}}}}}
    one = droptest.Network({"network": halves, "statistics": str(tmp_path / "mine/run")}, rank=0, world_size=2)
    one.flow("dp_gradient").next(4000)  # of the half that loses nothing
    with pytest.warns(UserWarning, match="rank 0 of 2: the network can lose packets"):
        one.finish(validation_loss=2)
    summary = read(tmp_path / "mine/run", "summary.json")
    assert summary["status"] == "completed" and "on rank 0: the network can lose" in summary["warnings"][0]["message"]


def test_the_command_watches_programs_of_a_sweep_and_diverged_ones(tmp_path):
    """The spec of neither is that of a run of droptest, and no reason to leave it out."""
    words = [os.environ["DROPTEST_BINARY"], "watch", str(tmp_path / "mine"), "--once"]
    with network(tmp_path / "mine/run") as one:
        one.flow("dp_gradient").next(4000)
        one.finish(training_loss=math.nan)
    swept = tmp_path / "mine/swept"
    swept.mkdir()
    (swept / "spec.json").write_text((tmp_path / "mine/run/spec.json").read_text())
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "2 runs: 1 waiting, 1 diverged" in out and "left out" not in out


def test_a_network_that_logs_ends_with_its_last_reference(tmp_path):
    one = network(tmp_path / "run")
    one.log(1, training_loss=1)
    ended = weakref.ref(one)
    gc.disable()
    try:
        del one
        assert ended() is None and (tmp_path / "run/loss_statistics.json").exists()
    finally:
        gc.enable()


LINES = [{"step": step, "seconds": 0.5 * step, "train_loss": 0.1 * step} for step in range(1, 13)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], {"status": "completed", "diverged_step": None, "steps": 0, "tokens": 0, "train": {"final_loss": None},
              "validation": {"final_loss": None, "best_loss": None, "tokens": 9}, "tokens_per_second": None,
              "seconds": None}),
        (LINES, {"steps": 12, "seconds": 6.0, "train": {"final_loss": sum(0.1 * step for step in range(3, 13)) / 10}}),
        ([*LINES, {"step": 12, "tokens": 12, "seconds": 8.0, "validation_loss": 3.0}],
         {"steps": 12, "tokens": 12, "tokens_per_second": 1.5, "train": {"final_loss": 0.75},
          "validation": {"final_loss": 3.0, "best_loss": 3.0, "tokens": 9}}),
        ([{"step": 1, "validation_loss": 2.0}, {"step": 2, "validation_loss": 3.0}, {"step": 4, "train_loss": 1}],
         {"validation": {"final_loss": 3.0, "best_loss": 2.0, "tokens": 9}, "train": {"final_loss": 1}, "steps": 4}),
        ([{"step": 1, "train_loss": 2.0}, {"step": 2, "train_loss": None}, {"step": 3, "train_loss": None}],
         {"status": "diverged", "diverged_step": 2, "train": {"final_loss": None}}),
        ([{"step": 1, "validation_loss": 2.0}, {"step": 7, "validation_loss": None}],
         {"status": "diverged", "diverged_step": 7, "validation": {"final_loss": None, "best_loss": 2.0, "tokens": 9}}),
        ([{"step": 1, "train_loss": None}, *({"step": step, "train_loss": 1.0} for step in range(2, 12))],
         {"status": "diverged", "diverged_step": 1, "train": {"final_loss": 1.0}}),
    ],
)  # fmt: skip
def test_the_rule_of_the_summary(lines, expected):
    outcome = outcome_of(lines, validation_tokens=9)
    final = outcome["train"]["final_loss"]
    outcome["train"]["final_loss"] = None if final is None else pytest.approx(final, rel=1e-15)
    assert {name: outcome[name] for name in expected} == expected


def write_runs(folder):
    """Three seeds of a lossless program and of two loss rates; the twins of a seed differ by 0.25 and 0.5."""
    rates = {"none": ({"model": "none"}, 0), "low": ({"model": "bernoulli", "loss_rate": "1%"}, 0.25),
             "high": ({"model": "bernoulli", "loss_rate": 0.05}, 0.5)}  # fmt: skip
    for name, (loss, above) in rates.items():
        for seed in (1, 2, 3):
            with network(folder / f"{name}_{seed}", loss, seed=1 if name == "none" else seed) as one:
                one.flow("dp_gradient").lose(np.ones(352000, np.float32))
                for step in range(1, 4):
                    one.log(step, training_loss=5 - step + above, tokens=step, accuracy=0.1 * step)
                one.finish(validation_loss=2 + 0.1 * seed + above, settings={"width": 64}, seed=seed)


def test_programs_in_one_folder_are_the_runs_of_one_experiment_with_lossless_twins(tmp_path):
    write_runs(tmp_path / "mine")
    assert droptest.experiments_in(tmp_path / "mine") == [tmp_path / "mine"]
    records = droptest.load(tmp_path / "mine")
    runs = records.runs.set_index("run_id")
    assert records.name == "mine" and records.warnings == [] and not records.of_programs
    assert set(runs["status"]) == {"completed"}
    for name, rate, above in (("low", 0.01, 0.25), ("high", 0.05, 0.5)):
        for seed in (1, 2, 3):
            run = runs.loc[f"{name}_{seed}"]
            assert (run["series"], run["loss_rate"], run["twin"]) == ("Bernoulli", rate, f"none_{seed}")
            assert run["difference"] == pytest.approx(above, abs=1e-12)
    points = droptest.points(records).set_index("loss_rate")
    assert list(points["series"]) == ["lossless", "Bernoulli", "Bernoulli"]
    assert points.loc[0.05, "difference_mean"] == pytest.approx(0.5) and points.loc[0.05, "difference_seeds"] == 3
    assert points.loc[0.01, "difference_high"] == pytest.approx(0.25)
    assert records.metrics.query("run_id == 'low_1'")["accuracy"].tolist() == pytest.approx([0.1, 0.2, 0.3])
    last = records.metrics.query("run_id == 'low_1' and step == 3").iloc[0]
    assert (last["train_loss"], last["validation_loss"]) == (2.25, pytest.approx(2.35))  # of two lines


def test_settings_are_told_apart_as_swept_values_are(tmp_path):
    for rate in (0.1, 0.2):
        for name, loss in (("none", {"model": "none"}), ("lossy", {"model": "bernoulli", "loss_rate": 0.5})):
            with network(tmp_path / "mine" / f"{name}_{rate}", loss) as one:
                one.flow("dp_gradient").lose(np.ones(35200, np.float32))
                one.finish(validation_loss=2 + rate, settings={"learning_rate": rate})
    runs = droptest.load(tmp_path / "mine").runs.set_index("run_id")
    assert list(runs.loc[["none_0.1", "lossy_0.2"], "/settings/learning_rate"]) == [0.1, 0.2]
    assert runs.loc["lossy_0.1", "series"] == "Bernoulli, learning rate 0.1"
    assert runs.loc["lossy_0.1", "twin"] == "none_0.1" and runs.loc["lossy_0.2", "twin"] == "none_0.2"


def test_a_report_of_programs_with_losses_has_tolerance_and_curves(tmp_path, capsys):
    write_runs(tmp_path / "mine")
    assert main(["report", str(tmp_path / "mine")]) == 0
    out = capsys.readouterr().out
    for name in ("tolerance", "final_loss", "training_curves", "burst_lengths", "loss_rate_check"):
        assert f"{name}.png" in out
    assert "differences.png" not in out  # a single evaluation
    assert "+0.2500 ± 0.0000" in out and "+0.5000 ± 0.0000" in out
    assert "warning" not in out and "Programs of users take no samples of collectives" in out


def test_a_unit_that_all_programs_name_is_that_of_the_records(tmp_path):
    for name, unit in (("a", "nats per byte"), ("b", "nats per byte"), ("c", None)):
        with network(tmp_path / "mine" / name) as one:
            one.finish(validation_loss=2, unit=unit)
        assert droptest.load(tmp_path / "mine").unit == ("nats per token" if name == "c" else "nats per byte")


def test_a_program_that_was_killed_before_its_end_stays_a_program_beside_the_runs(tmp_path):
    write_runs(tmp_path / "mine")
    one = network(tmp_path / "mine/killed", rank=0, world_size=2)
    one.log(1, training_loss=3)
    one.close()
    runs = droptest.load(tmp_path / "mine").runs.set_index("run_id")
    assert runs.loc["killed", "status"] == "partly counted" and set(runs["status"]) == {"completed", "partly counted"}
    assert droptest.load(tmp_path / "mine/killed").of_programs


def test_the_ranks_of_a_run_that_have_not_written_their_counts_are_named(tmp_path):
    with network(tmp_path / "mine/run", rank=0, world_size=2) as one:
        one.flow("dp_gradient").lose(np.ones(35200, np.float32))
        one.finish(validation_loss=2)
    records = droptest.load(tmp_path / "mine")
    assert any("run: the counts of rank 1 are missing, of 2 ranks" in text for text in records.warnings)
    (tmp_path / "mine/run/loss_statistics.json").unlink()
    records = droptest.load(tmp_path / "mine")
    assert records.loss_statistics.query("half == 'both'")["packets"].tolist() == [100]  # added up from ranks/
    assert any("no losses of packets here" in text and "--again" not in text for text in records.warnings)


def test_a_run_of_a_program_beside_other_experiments_hides_none_of_them(tmp_path):
    write_runs(tmp_path / "results/mine")
    with network(tmp_path / "results/single") as one:
        one.finish(validation_loss=2)
    names = ["mine", "single"]
    assert [folder.name for folder in droptest.experiments_in(tmp_path / "results")] == names
    assert [records.path.name for records in droptest.load_all(tmp_path / "results")] == names


def test_the_command_watches_and_exports_the_runs(tmp_path):
    write_runs(tmp_path / "mine")
    binary = os.environ["DROPTEST_BINARY"]
    words = [binary, "watch", str(tmp_path / "mine"), "--once"]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "9 runs: 9 completed" in out and "left out" not in out
    row = r"loss: bernoulli loss_rate=1%, width: 64 +1 +completed +3/3 +2\.2500 +2\.3500 +[0-9.]+ %"
    assert re.search(row, out), out
    words = [binary, "export", str(tmp_path / "mine"), "--tensorboard"]
    subprocess.run(words, capture_output=True, check=True)
    assert len(list((tmp_path / "mine/tensorboard").rglob("events.out.tfevents.*"))) == 9


def test_the_export_for_wandb_has_the_runs_by_their_points_and_seeds(tmp_path, monkeypatch):
    write_runs(tmp_path / "mine")
    sessions = []

    class Session:
        def __init__(self, **words):
            self.words, self.logged, self.summary = words, {}, {}
            sessions.append(self)

        def log(self, values, step):
            self.logged[step] = values

        def finish(self, exit_code):
            assert exit_code == 0

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=Session))
    assert main(["wandb", str(tmp_path / "mine")]) == 0
    assert len(sessions) == 9
    (one,) = [session for session in sessions if session.words["id"] == "low_2"]
    assert one.words["group"] == "loss: Bernoulli 1 %, width: 64" and one.words["name"].endswith(", seed 2")
    assert one.words["config"]["/network/loss/loss_rate"] == 0.01 and one.words["config"]["/settings/width"] == 64
    assert one.logged[3]["train_loss"] == 2.25 and one.logged[3]["validation_loss"] == 2.45
    assert one.summary["validation/final_loss"] == 2.45 and one.summary["configured_rate/dp_gradient"] == 0.01


def test_a_network_needs_numpy_alone():
    words = "import sys, droptest.network; print([m for m in ('pandas', 'scipy', 'matplotlib') if m in sys.modules])"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "analysis")}
    done = subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
