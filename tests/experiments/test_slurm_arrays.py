# SPDX-License-Identifier: Apache-2.0
"""Sweeps as job arrays of a real Slurm give the records of a sweep on one machine, whatever happens to their tasks."""

import json
import subprocess
from pathlib import Path

import pytest
from cli_harness import (
    CLEAN_ENVIRONMENT,
    losses_of,
    metrics_of,
    run,
    run_folders,
    start,
    summary_of,
    wait_until,
    write_spec,
)
from holds import await_request_to_end
from slurm_cluster import free_ports

RATES = {"/network/loss/loss_rate": [0.01, 0.05, 0.1]}
SBATCH = ("--", "--mem=50")


def submit(slurm, folder, *arguments, sbatch=SBATCH, environment=None):
    """The job ids."""
    variables = {**slurm.environment, **(environment or {})}
    out = run("sweep", "spec.json", "--slurm", *arguments, *sbatch, cwd=folder, environment=variables).out
    return [line.split()[2].rstrip(":") for line in out.splitlines() if line.startswith("submitted job")]


def end_of(slurm, job):
    wait_until(lambda: not slurm.ask("squeue", "-h", "-j", job).strip(), seconds=120)


def control(slurm, *arguments):
    """scontrol, which must agree."""
    command = [slurm.programs["scontrol"], *arguments]
    environment = {**CLEAN_ENVIRONMENT, **slurm.environment}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=600)


def start_again(slurm, task):
    """Slurm delays a requeued task by two minutes, and refuses one that starts in the second in which it was ended."""
    control(slurm, "update", f"JobId={task}", "StartTime=now+2")


def state_of(slurm, task):
    return slurm.ask("squeue", "-h", "-j", task, "-o", "%T").strip()


def exit_code_of(slurm, task):
    words = slurm.ask("scontrol", "show", "job", task).split()
    return next(word for word in words if word.startswith("ExitCode="))


def logs_of(folder):
    return "\n".join(path.read_text() for path in sorted((folder / "results").rglob("task_*.log")))


def run_ids(folder, out="results"):
    return {f.name for f in run_folders(folder, out=out) if f.name != "slurm"}


def expect_records_of_a_local_sweep(folder, **more):
    """Bit by bit the losses of a sweep of the same spec on this machine."""
    run("sweep", "spec.json", "--out", "local", cwd=folder, **more)
    assert run_ids(folder) == run_ids(folder, out="local"), logs_of(folder)
    for run_id in run_ids(folder):
        ours, theirs = folder / "results/tiny" / run_id, folder / "local/tiny" / run_id
        assert losses_of(ours) == losses_of(theirs)
        assert summary_of(ours)["validation"] == summary_of(theirs)["validation"]
        assert summary_of(ours)["point"] == summary_of(theirs)["point"]
    sweep = Path("tiny/sweep.json")
    assert (folder / "results" / sweep).read_text() == (folder / "local" / sweep).read_text()


def expect_nothing_left_to_do(folder):
    """A sweep on this machine finds all results, and leaves them as they are."""
    before = {f: f.stat().st_mtime_ns for f in (folder / "results").rglob("summary.json")}
    assert "nothing to submit" in run("sweep", "spec.json", "--slurm", cwd=folder, environment={"PATH": "/nowhere"}).out
    run("sweep", "spec.json", cwd=folder)
    assert {f: f.stat().st_mtime_ns for f in (folder / "results").rglob("summary.json")} == before


def test_an_array_gives_the_records_of_a_local_sweep(slurm, tmp_path):
    write_spec(tmp_path, sweep={"cross": RATES}, repeat={"seeds": 2})
    (job,) = submit(slurm, tmp_path, "--array-limit", 2, "--runs-per-task", 1, sbatch=("--", "--mem=50", "--hold"))
    assert "ArrayTaskThrottle=2" in slurm.ask("scontrol", "show", "job", job)
    # What waits in a job is not submitted again.
    assert submit(slurm, tmp_path, "--runs-per-task", 1) == []
    control(slurm, "release", job)
    end_of(slurm, job)
    assert len(run_ids(tmp_path)) == 6, logs_of(tmp_path)
    expect_records_of_a_local_sweep(tmp_path)
    expect_nothing_left_to_do(tmp_path)


def test_groups_of_runs_share_a_task_and_are_done_by_srun_where_ranks_are_processes(slurm, tmp_path):
    write_spec(tmp_path, sweep={"cross": {**RATES, "/backend/name": ["gloo", "local"]}})
    # The nodes of this Slurm are names of one machine, so a task cannot find the first one by its name.
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1))}
    if "gloo (not built)" in run("info", cwd=tmp_path).out:
        pytest.skip("the gloo backend was not built")
    jobs = submit(slurm, tmp_path, "--runs-per-task", 2, sbatch=("--", "--mem=50", "--hold"), environment=variables)
    folders = [tmp_path / f"results/tiny/slurm/array_{number}" for number in (1, 2)]
    assert [len(task) for task in json.loads((folders[0] / "array.json").read_text())["tasks"]] == [2, 1]
    # One task after another: they share the port that this test gives them.
    for job in jobs:
        control(slurm, "update", f"JobId={job}", "ArrayTaskThrottle=1")
        control(slurm, "release", job)
        end_of(slurm, job)
    assert [len(list(folder.glob("task_*.log"))) for folder in folders] == [2, 2]
    assert logs_of(tmp_path).count(": completed: ") == 6
    expect_records_of_a_local_sweep(tmp_path)
    expect_nothing_left_to_do(tmp_path)


def test_ranks_of_a_task_are_on_several_nodes(slurm, tmp_path):
    if "gloo (not built)" in run("info", cwd=tmp_path).out:
        pytest.skip("the gloo backend was not built")
    write_spec(tmp_path, backend={"name": "gloo", "timeout_seconds": 30}, parallel={"tensor": 4})
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1))}
    (job,) = submit(slurm, tmp_path, sbatch=("--", "--mem=50", "--nodes=2"), environment=variables)
    end_of(slurm, job)
    assert "NumNodes=2" in slurm.ask("scontrol", "show", "job", job)
    assert logs_of(tmp_path).count(": completed: ") == 1, logs_of(tmp_path)
    expect_records_of_a_local_sweep(tmp_path)


@pytest.fixture
def running_pair(slurm, tmp_path, holds):
    """An array of two tasks, both of which train, and wait before step 5."""
    write_spec(tmp_path, sweep={"cross": {"/network/loss/loss_rate": [0.05, 0.1]}})
    holds.at("step-5")
    (job,) = submit(slurm, tmp_path, "--runs-per-task", 1, environment=holds.environment)
    holds.reached("step-5", 4)
    yield job
    slurm.ask("scancel", job)
    end_of(slurm, job)


def test_a_task_that_is_requeued_trains_its_run_once_more(slurm, running_pair, holds, tmp_path):
    task = f"{running_pair}_1"
    control(slurm, "requeue", task)
    wait_until(lambda: state_of(slurm, task) == "PENDING")  # not before the first attempt has ended
    holds.release("step-5")
    start_again(slurm, task)
    end_of(slurm, running_pair)
    log = (tmp_path / "results/tiny/slurm/array_1/task_1.log").read_text()
    assert "stopped: 0 of 1 runs of the task have ended" in log and log.count(": completed: ") == 1
    assert logs_of(tmp_path).count(": completed: ") == 2
    expect_records_of_a_local_sweep(tmp_path)
    expect_nothing_left_to_do(tmp_path)


def test_a_task_that_is_requeued_goes_on_from_its_checkpoint(slurm, holds, tmp_path):
    write_spec(tmp_path, checkpoint={"every_steps": 4, "async": False}, sweep={"cross": {"/seed": [1]}})
    holds.at("step-7")
    (job,) = submit(slurm, tmp_path, environment=holds.environment)
    try:
        worker = holds.reached("step-7", 2)[0][1]
        assert list((tmp_path / "results/tiny").glob("*/checkpoints/LATEST"))
        control(slurm, "requeue", f"{job}_1")
        await_request_to_end(worker)
        holds.release("step-7")
        wait_until(lambda: state_of(slurm, f"{job}_1") == "PENDING")
        start_again(slurm, f"{job}_1")
        end_of(slurm, job)
    finally:
        slurm.ask("scancel", job)
    ((run_id,),) = tasks_of(tmp_path, 1)
    folder = tmp_path / "results/tiny" / run_id
    assert len(summary_of(folder)["resumed_at"]) == 1, logs_of(tmp_path)
    steps = [line["step"] for line in metrics_of(folder)]
    assert steps == sorted(set(steps)) == list(range(0, 13, 2))
    expect_records_of_a_local_sweep(tmp_path)


def test_the_run_of_a_task_that_was_killed_is_submitted_again_alone(slurm, running_pair, holds, tmp_path):
    slurm.ask("scancel", "--signal=KILL", "--full", f"{running_pair}_2")
    wait_until(lambda: state_of(slurm, f"{running_pair}_2") == "")
    first, second = (task[0] for task in tasks_of(tmp_path, 1))
    assert not (tmp_path / "results/tiny" / second / "summary.json").exists()
    (job,) = submit(slurm, tmp_path)
    assert tasks_of(tmp_path, 2) == [[second]]  # the first run is in its job
    holds.release("step-5")
    end_of(slurm, running_pair)
    end_of(slurm, job)
    assert {first, second} == run_ids(tmp_path)
    expect_records_of_a_local_sweep(tmp_path)


def tasks_of(folder, number):
    return json.loads((folder / f"results/tiny/slurm/array_{number}/array.json").read_text())["tasks"]


def test_a_run_that_fails_is_recorded_and_the_others_go_on(slurm, tmp_path):
    write_spec(tmp_path, sweep={"cross": {"/data/text": ["corpus.txt", "other.txt"]}})
    (tmp_path / "other.txt").write_text("other words " * 2000)
    (job,) = submit(slurm, tmp_path, sbatch=("--", "--mem=50", "--hold"))
    (tmp_path / "other.txt").write_text("changed words " * 2000)
    control(slurm, "release", job)
    end_of(slurm, job)
    ((first, second),) = tasks_of(tmp_path, 1)
    folders = [tmp_path / "results/tiny" / run_id for run_id in (first, second)]
    assert [summary_of(folder)["status"] for folder in folders] == ["completed", "failed"]
    assert exit_code_of(slurm, f"{job}_1") == "ExitCode=1:0"


def test_a_local_sweep_at_the_same_time_leaves_the_run_of_a_task_alone(slurm, running_pair, holds, tmp_path):
    sweep = start("sweep", "spec.json", cwd=tmp_path)
    _, errors = sweep.communicate(timeout=600)
    assert sweep.returncode == 3 and errors.count("is busy: process ") >= 2
    holds.release("step-5")
    end_of(slurm, running_pair)
    expect_nothing_left_to_do(tmp_path)
