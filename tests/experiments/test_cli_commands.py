# SPDX-License-Identifier: Apache-2.0
"""Sweeps, searches and reports of programs of the user's own: `command` in a spec."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_harness import BINARY, CLEAN_ENVIRONMENT, processes_with, run, run_folders, start, summary_of, wait_until

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "analysis"))

# A model of 20,000 weights whose gradient loses packets.
PROGRAM = """
import os, sys
import numpy
import droptest

rate, ranks = float(sys.argv[1]), int(sys.argv[2])
target = numpy.random.default_rng(int(os.environ["DROPTEST_WEIGHTS_SEED"])).standard_normal(20000).astype(numpy.float32)
networks = [droptest.Network(rank=rank, world_size=ranks) for rank in range(ranks)]
flows = [network.flow("dp_gradient", rank) for rank, network in enumerate(networks)]
weights = numpy.zeros_like(target)
for step in range(1, 13):
    gradients = [weights - target for _ in range(ranks)]
    for flow, gradient in zip(flows, gradients):
        flow.lose(gradient)
    weights -= rate * sum(gradients) / ranks
    error = ((weights - target) ** 2).mean()
    networks[0].log(step, training_loss=error, validation_loss=2 * error, tokens=10 * step)
    if os.path.exists("stop"):
        sys.exit("ValueError: told to")
for network in networks:
    network.close()
"""

# Writes its process and that of a child, and waits.
WAITING = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
with open("pids.new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename("pids.new", "pids")
time.sleep(1000)
"""

ENVIRONMENT = {"PYTHONPATH": str(ROOT / "analysis")}
if "DROPTEST_LIBRARY" in os.environ:
    ENVIRONMENT["DROPTEST_LIBRARY"] = os.environ["DROPTEST_LIBRARY"]


def command_spec(folder, program=PROGRAM, file="spec.json", **changes):
    (folder / "train.py").write_text(program)
    spec = {
        "name": "mine",
        "command": [sys.executable, "train.py", "{rate}", "2"],
        "settings": {"rate": 0.2},
        "network": {"loss": {"model": "bernoulli", "loss_rate": "10%"}},
    } | changes
    (folder / file).write_text(json.dumps(spec))
    return file


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_sweep_of_a_command_is_one_of_runs_with_twins_a_table_and_a_report(tmp_path, analysis):
    droptest = pytest.importorskip("droptest")
    axes = {"/network/loss/loss_rate": [0, "10%", "40%"], "/settings/rate": [0.1, 0.2]}
    command_spec(tmp_path, sweep={"cross": axes}, repeat={"seeds": 2})
    result = run("sweep", "spec.json", "--jobs", "2", cwd=tmp_path, environment=ENVIRONMENT)
    folders = run_folders(tmp_path, "mine")
    assert len(folders) == 12 and "12 runs in results/mine" in result.out

    records = droptest.load(tmp_path / "results/mine")
    runs = records.runs.set_index("run_id")
    assert set(runs["status"]) == {"completed"} and not records.warnings
    finals = runs["final_validation_loss"]
    for run_id, one in runs.iterrows():
        summary = summary_of(tmp_path / "results/mine" / run_id)
        assert summary["validation"]["final_loss"] == one["final_validation_loss"]
        if one["loss_rate"] == 0:
            continue
        twin = runs.loc[one["twin"]]
        assert twin["loss_rate"] == 0 and twin["seed"] == one["seed"]
        assert twin["/settings/rate"] == one["/settings/rate"]
        assert one["difference"] == pytest.approx(finals[run_id] - finals[one["twin"]], abs=1e-12)
    # Both ranks' packets: 12 messages of 57 packets each. A lossless twin has no lost packet.
    statistics = records.loss_statistics.query("half == 'both' and packets > 0").set_index("run_id")
    assert set(statistics["packets"]) == {2 * 12 * 57}
    assert (statistics["z"].dropna().abs() < 4).all()
    assert (statistics.loc[runs.index[runs["loss_rate"] == 0], "lost"] == 0).all()
    # Seeds of the weights give other targets, those of the network other losses.
    assert len(set(finals)) == 12

    done = {folder: (folder / "summary.json").stat().st_mtime_ns for folder in folders}
    run("sweep", "spec.json", cwd=tmp_path, environment=ENVIRONMENT)
    assert done == {folder: (folder / "summary.json").stat().st_mtime_ns for folder in folders}
    assert "Bernoulli, rate 0.1" in analysis(["table", "results/mine"], tmp_path).stdout
    # A change of the script is another program.
    (tmp_path / "train.py").write_text(PROGRAM + "# changed\n")
    run("run", "spec.json", "--set", "/sweep=null", "--set", "/repeat=null", cwd=tmp_path, environment=ENVIRONMENT)
    assert len(list((tmp_path / "results/mine").glob("*/spec.json"))) == 13


def test_the_outcome_is_that_which_the_python_package_finds(tmp_path):
    pytest.importorskip("droptest")
    from droptest.program_run import outcome_of

    program = """
import numpy, droptest
random = numpy.random.default_rng(3)
network = droptest.Network()
network.flow("dp_gradient", 0).next(4000)
for step in range(0, 90, 3):
    loss = float(random.normal(3, 1)) if step != 30 or {diverges} else float("nan")
    network.log(step, training_loss=loss, tokens=step * 7, validation_loss=random.normal() if step % 2 else None)
network.finish(step=95, validation_loss=2.75)
"""
    for diverges, status in ((True, "completed"), (False, "diverged")):
        command_spec(tmp_path, program.format(diverges=diverges), command=[sys.executable, "train.py"])
        run("run", "spec.json", "--quiet", cwd=tmp_path, environment=ENVIRONMENT)
        newest = max(run_folders(tmp_path, "mine"), key=lambda folder: folder.stat().st_mtime_ns)
        summary = summary_of(newest)
        lines = [json.loads(line) for line in (newest / "metrics.jsonl").read_text().splitlines()]
        found = outcome_of(lines)
        assert found["status"] == status and found["validation"]["final_loss"] == 2.75 and found["steps"] == 95
        assert {name: summary[name] for name in found} == found
        assert math.isfinite(summary["tokens_per_second"])


def test_a_search_finds_the_tolerance_of_a_program(tmp_path, analysis):
    command_spec(tmp_path, search={"tolerance_percent": 60, "seeds": 2, "max_runs": 14, "resolution": 0.5})
    run("search", "spec.json", "--jobs", "2", cwd=tmp_path, environment=ENVIRONMENT)
    record = json.loads((tmp_path / "results/mine/search.json").read_text())
    assert record["status"] in ("found", "budget_spent")
    assert all(rate["verdict"] in ("passes", "fails", "undecided") for rate in record["rates"])
    assert record["rates"][0]["verdict"] == "passes" and record["rates"][-1]["verdict"] == "fails"
    assert analysis(["table", "results/mine", "--name", "runs"], tmp_path).returncode == 0


def test_a_program_that_fails_is_recorded_and_the_others_go_on(tmp_path):
    command_spec(tmp_path, sweep={"cross": {"/settings/rate": [0.1, 0.2]}})
    (tmp_path / "stop").touch()
    result = run("sweep", "spec.json", cwd=tmp_path, expect=1, environment=ENVIRONMENT)
    assert result.err.count("the program ended with exit code 1: ValueError: told to; its output is in") == 2
    for folder in run_folders(tmp_path, "mine"):
        summary = summary_of(folder)
        assert summary["status"] == "failed" and summary["steps"] == 1
        assert "ValueError: told to" in (folder / "program.log").read_text()
    (tmp_path / "stop").unlink()
    run("sweep", "spec.json", cwd=tmp_path, environment=ENVIRONMENT)
    assert {summary_of(folder)["status"] for folder in run_folders(tmp_path, "mine")} == {"completed"}
    # resume says whose checkpoints count, and has nothing to do.
    resumed = run("resume", run_folders(tmp_path, "mine")[0], cwd=tmp_path, environment=ENVIRONMENT)
    assert "the command is called again; where it goes on is up to checkpoints of its own" in resumed.err
    refused = run("resume", run_folders(tmp_path, "mine")[0], "--at", "5", cwd=tmp_path, expect=2)
    assert "/command: got a program of your own with --at" in refused.err


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("print('no network')", "its ranks have written no counts of the network"),
        ("import droptest; droptest.Network().log(1, training_loss=2)", "it has sent no packet that can be lost"),
        (
            "import os, json, droptest; source = json.load(open(os.environ['DROPTEST_NETWORK']))\n"
            "source['rules'] = []; droptest.Network(source).flow('dp_gradient').next(4000)",
            "/network/digest: got that of other rules",
        ),
    ],
)
def test_a_program_that_does_not_use_the_network_is_no_result(tmp_path, program, words):
    command_spec(tmp_path, program, rules=[{"operation": "reduce", "class": "tp_forward"}])
    failed = run("run", "spec.json", cwd=tmp_path, expect=1, environment=ENVIRONMENT)
    assert words in failed.err


def test_what_a_program_leaves_out_is_said(tmp_path):
    program = "import droptest; droptest.Network(rank=0, world_size=2).flow('dp_gradient').next(4000)"
    command_spec(tmp_path, program)
    for words in ("run", "sweep"):
        result = run(words, "spec.json", "--again", cwd=tmp_path, environment=ENVIRONMENT)
        assert "warning: ranks [1] have written no counts of their packets" in result.err
        assert "warning: the program has written no metrics.jsonl" in result.err
    again = "    one = droptest.Network()\n    one.log(1, training_loss=1)\n    one.close()\n"
    second = f"import droptest\nfor _ in range(2):\n{again}"
    command_spec(tmp_path, second)
    failed = run("run", "spec.json", cwd=tmp_path, expect=1, environment=ENVIRONMENT)
    assert "got the first line of a second network of this program" in failed.err


def test_runs_that_have_not_begun_are_no_lossless_ones(tmp_path):
    droptest = pytest.importorskip("droptest")
    command_spec(tmp_path, repeat={"seeds": 3})
    run("sweep", "spec.json", cwd=tmp_path, environment=ENVIRONMENT)
    for folder in run_folders(tmp_path, "mine")[1:]:
        shutil.rmtree(folder)
    records = droptest.load(tmp_path / "results/mine")
    assert set(records.runs["lossless"]) == {False} and set(records.runs["series"]) == {"Bernoulli"}
    assert list(records.runs["status"]).count("missing") == 2


def test_a_worker_that_is_killed_takes_the_processes_of_its_program_along(tmp_path):
    command_spec(tmp_path, WAITING)
    sweep = start("sweep", "spec.json", cwd=tmp_path, environment=ENVIRONMENT)
    wait_until((tmp_path / "pids").exists)
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    (worker,) = processes_with(" worker ", tmp_path)
    os.kill(worker, signal.SIGKILL)
    sweep.communicate()
    assert sweep.returncode == 1 and not any(map(is_alive, pids))


def test_other_processes_of_the_users_script_go_on(tmp_path):
    command_spec(tmp_path, WAITING)
    words = f"sleep 1002 & echo $! > monitor; exec {BINARY} sweep spec.json"
    script = subprocess.Popen(["sh", "-c", words], cwd=tmp_path, env={**CLEAN_ENVIRONMENT, **ENVIRONMENT},
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    wait_until((tmp_path / "pids").exists)
    monitor = int((tmp_path / "monitor").read_text())
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    (worker,) = processes_with(" worker ", tmp_path)
    os.kill(worker, signal.SIGKILL)
    script.wait()
    try:
        assert is_alive(monitor) and not any(map(is_alive, pids))
    finally:
        os.kill(monitor, signal.SIGKILL)


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_sweep_that_ends_takes_all_processes_of_its_programs_along(tmp_path, told):
    command_spec(tmp_path, WAITING)
    sweep = start("sweep", "spec.json", cwd=tmp_path, environment=ENVIRONMENT)
    wait_until((tmp_path / "pids").exists)
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert all(map(is_alive, pids))
    sweep.send_signal(told)
    sweep.communicate()
    if told != signal.SIGKILL:
        assert sweep.returncode == 130
        assert not any(map(is_alive, pids))
    wait_until(lambda: not any(map(is_alive, pids)))
    wait_until(lambda: not processes_with("worker", tmp_path))
    (folder,) = run_folders(tmp_path, "mine")
    assert not (folder / "summary.json").exists()
    # The same command runs it again.
    (tmp_path / "train.py").write_text(WAITING)
    (tmp_path / "pids").unlink()
    again = start("sweep", "spec.json", cwd=tmp_path, environment=ENVIRONMENT)
    wait_until((tmp_path / "pids").exists)
    again.send_signal(signal.SIGINT)
    again.communicate()


def test_commands_about_training_say_that_they_do_not_know_the_program(tmp_path):
    command_spec(tmp_path)
    for words in (
        ("plan", "spec.json"),
        ("plan", "spec.json", "--layout"),
        ("export", "--initial", "spec.json", "--out", "w.safetensors"),
    ):
        refused = run(*words, cwd=tmp_path, expect=2)
        assert "/command: got a program of your own" in refused.err, words
    refused = run("sweep", "spec.json", "--slurm", cwd=tmp_path, expect=2)
    assert "/command: got a program of your own with --slurm" in refused.err
    assert "spec.json: ok, 1 run" in run("validate", "spec.json", cwd=tmp_path).out
    command_spec(tmp_path, training={"steps": 3})
    wrong = run("validate", "spec.json", cwd=tmp_path, expect=2)
    assert "spec.json: /training: got it with /command, want it absent" in wrong.err
