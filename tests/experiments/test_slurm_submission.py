# SPDX-License-Identifier: Apache-2.0
"""droptest sweep --slurm before any cluster: what is submitted, what is not, and which errors are told."""

import fcntl
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from cli_harness import BINARY, run, run_folders, start, summary_of, wait_until, write_spec
from slurm_programs import CONFIGURATION, SlurmPrograms

RATES = [0.01, 0.02, 0.05, 0.1]
ARRAY = Path("results/tiny/slurm/array_1")


@pytest.fixture
def slurm_programs(tmp_path):
    write_spec(tmp_path, sweep={"cross": {"/network/loss/loss_rate": RATES}})
    return SlurmPrograms(tmp_path / "bin")


def sweep(programs, folder, *arguments, expect=0):
    words = ("sweep", "spec.json", "--slurm", *arguments)
    return run(*words, cwd=folder, expect=expect, environment=programs.environment)


def submitted_tasks(folder):
    """For each array the run ids of its tasks."""
    files = sorted((folder / "results/tiny/slurm").glob("array_*/array.json"))
    return [json.loads(file.read_text())["tasks"] for file in files]


def ids_of_sweep(folder):
    return [entry["run_id"] for entry in json.loads((folder / "results/tiny/sweep.json").read_text())["runs"]]


def test_a_submission_writes_what_its_tasks_need_and_says_what_comes_next(slurm_programs, tmp_path):
    out = sweep(slurm_programs, tmp_path, "--array-limit", 2, "--runs-per-task", 1, "--", "--mem=1G", "-p", "gpu").out
    assert slurm_programs.calls("sbatch") == [f"--parsable --mem=1G -p gpu {ARRAY}/batch.sh"]
    assert slurm_programs.calls("squeue") == []  # nothing was submitted before
    assert "tiny: 4 runs: 0 finished, 0 in jobs, 0 busy, 4 missing\n" in out
    assert "submitted job 101: 4 tasks, 4 runs, at most 2 at once, each 1 process with 2 cores\n" in out
    assert "squeue --jobs=101\n" in out and "scancel 101\n" in out
    assert "results: droptest sweep spec.json, once the jobs have ended\n" in out
    ids = ids_of_sweep(tmp_path)
    assert submitted_tasks(tmp_path) == [[[run_id] for run_id in ids]]
    lines = [json.loads(line) for line in (tmp_path / ARRAY / "tasks.jsonl").read_text().splitlines()]
    assert [line["runs"][0]["point"] for line in lines] == [{"/network/loss/loss_rate": rate} for rate in RATES]
    assert not any((tmp_path / "results/tiny" / run_id).exists() for run_id in ids)  # the tasks' own
    assert not (tmp_path / "results/tiny/slurm/lock").exists()


def test_a_dry_run_prints_the_script_and_writes_nothing(slurm_programs, tmp_path):
    out = sweep(slurm_programs, tmp_path, "--dry-run", "--array-limit", 3, "--runs-per-task", 2, "--", "--mem=1G").out
    assert "#SBATCH --array=1-2%3\n" in out and f"#SBATCH --chdir={tmp_path}\n" in out
    assert f"# sbatch --parsable --mem=1G {ARRAY}/batch.sh\n" in out
    assert f'\nexec {BINARY} sweep-task {ARRAY} "$SLURM_ARRAY_TASK_ID" --if-busy skip\n' in out
    assert slurm_programs.calls("sbatch") == [] and not (tmp_path / "results").exists()
    sweep(slurm_programs, tmp_path, "--array-limit", 3, "--runs-per-task", 2)
    assert (tmp_path / ARRAY / "batch.sh").read_text() in out


def test_small_runs_share_a_task(slurm_programs, tmp_path):
    assert "1 task, 4 runs" in sweep(slurm_programs, tmp_path).out
    assert submitted_tasks(tmp_path) == [[ids_of_sweep(tmp_path)]]


def test_runs_that_are_in_a_job_are_not_submitted_again(slurm_programs, tmp_path):
    sweep(slurm_programs, tmp_path, "--runs-per-task", 1)
    ids = ids_of_sweep(tmp_path)
    slurm_programs.say("squeue", "printf '101_2\\n101_4\\n'")
    out = sweep(slurm_programs, tmp_path, "--runs-per-task", 1).out
    assert slurm_programs.calls("squeue") == ["--noheader --array --format=%F_%K --jobs=101"]
    assert "tiny: 4 runs: 0 finished, 2 in jobs, 0 busy, 2 missing\n" in out
    assert "in jobs 101 already: 2 runs, not submitted again\n" in out
    assert submitted_tasks(tmp_path)[1] == [[ids[0]], [ids[2]]]
    # With all in jobs, nothing is submitted, and sbatch is not called.
    slurm_programs.say("squeue", "printf '101_2\\n101_4\\n102_1\\n102_2\\n'")
    out = sweep(slurm_programs, tmp_path).out
    assert len(slurm_programs.calls("sbatch")) == 2 and "squeue --jobs=101,102\n" in out
    # Once the jobs have ended without a result, all are submitted again.
    slurm_programs.say("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    sweep(slurm_programs, tmp_path, "--runs-per-task", 4)
    assert submitted_tasks(tmp_path)[2] == [ids]


def test_nothing_is_submitted_where_nobody_knows_what_is_in_jobs(slurm_programs, tmp_path):
    sweep(slurm_programs, tmp_path)
    slurm_programs.say("squeue", "echo 'squeue: error: no controller' >&2; exit 1")
    err = sweep(slurm_programs, tmp_path, expect=2).err
    assert "squeue ended with exit code 1: squeue: error: no controller" in err
    assert len(slurm_programs.calls("sbatch")) == 1


def test_only_runs_without_a_result_are_submitted(slurm_programs, tmp_path):
    run("run", "spec.json", "--run", 2, cwd=tmp_path)
    out = sweep(slurm_programs, tmp_path, "--runs-per-task", 1).out
    assert "tiny: 4 runs: 1 finished, 0 in jobs, 0 busy, 3 missing\n" in out
    ids = ids_of_sweep(tmp_path)
    assert submitted_tasks(tmp_path) == [[[ids[0]], [ids[2]], [ids[3]]]]


def test_a_finished_sweep_submits_nothing_and_needs_no_slurm(tmp_path):
    write_spec(tmp_path)
    run("run", "spec.json", cwd=tmp_path)
    out = run("sweep", "spec.json", "--slurm", cwd=tmp_path, environment={"PATH": "/nowhere"}).out
    assert "nothing to submit; next: droptest report results/tiny\n" in out


def test_a_run_that_another_process_is_at_work_on_is_left_to_it(slurm_programs, tmp_path):
    sweep(slurm_programs, tmp_path, "--runs-per-task", 1)
    ids = ids_of_sweep(tmp_path)
    lock = tmp_path / "results/tiny" / ids[1] / "lock"
    lock.parent.mkdir()
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        print("process 4711 on host node3", file=file, flush=True)
        out = sweep(slurm_programs, tmp_path, "--runs-per-task", 1).out
    assert "0 in jobs, 1 busy, 3 missing" in out
    assert f"not submitted: run {ids[1]} (loss_rate: 0.02, seed 1) is busy: process 4711 on host node3" in out
    assert submitted_tasks(tmp_path)[1] == [[ids[0]], [ids[2]], [ids[3]]]


def test_a_second_submission_at_the_same_time_is_refused(slurm_programs, tmp_path):
    lock = tmp_path / "results/tiny/slurm/lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        err = sweep(slurm_programs, tmp_path, expect=3).err
    assert "results/tiny/slurm is busy" in err and "another submission of this sweep goes on" in err


def test_arrays_end_at_the_limit_of_the_cluster(slurm_programs, tmp_path):
    slurm_programs.say("scontrol", CONFIGURATION.format(size=4))
    out = sweep(slurm_programs, tmp_path, "--runs-per-task", 1).out
    assert "submitted job 101: 3 tasks" in out and "submitted job 102: 1 task, 1 run" in out
    assert "scancel 101 102\n" in out
    ids = ids_of_sweep(tmp_path)
    assert submitted_tasks(tmp_path) == [[[ids[0]], [ids[1]], [ids[2]]], [[ids[3]]]]


def test_arrays_before_one_that_sbatch_refuses_stay(slurm_programs, tmp_path):
    slurm_programs.say("scontrol", CONFIGURATION.format(size=4))
    slurm_programs.say("sbatch", "echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2; exit 1", call=2)
    result = sweep(slurm_programs, tmp_path, "--runs-per-task", 1, expect=2)
    assert "submitted job 101" in result.out
    assert "sbatch ended with exit code 1: sbatch: error: AssocMaxSubmitJobLimit" in result.err
    assert "the command was: sbatch --parsable results/tiny/slurm/array_2/batch.sh" in result.err
    assert not (tmp_path / "results/tiny/slurm/array_2").exists()
    slurm_programs.say("squeue", "printf '101_1\\n101_2\\n101_3\\n'")
    sweep(slurm_programs, tmp_path, "--runs-per-task", 1)
    assert submitted_tasks(tmp_path)[1] == [[ids_of_sweep(tmp_path)[3]]]


@pytest.mark.parametrize(
    "lost",
    [
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1",
        "kill -9 $$",
    ],
)
def test_an_array_that_slurm_may_have_taken_is_not_submitted_twice(slurm_programs, tmp_path, lost):
    slurm_programs.say("sbatch", lost, call=1)
    err = sweep(slurm_programs, tmp_path, expect=2).err
    assert "Slurm may have taken the array: its folder results/tiny/slurm/array_1 stays" in err
    script = tmp_path / ARRAY / "batch.sh"
    assert script.exists()
    listed = f"case \"$*\" in *--me*) echo '9 /else/batch.sh'; echo '101 {script}';; *) echo 101_1;; esac"
    slurm_programs.say("squeue", listed)
    out = sweep(slurm_programs, tmp_path).out
    assert len(slurm_programs.calls("sbatch")) == 1 and "4 in jobs" in out
    assert json.loads((tmp_path / ARRAY / "array.json").read_text())["job_id"] == "101"


def test_an_array_that_slurm_did_not_take_is_submitted_again(slurm_programs, tmp_path):
    slurm_programs.say("sbatch", "echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1", call=1)
    sweep(slurm_programs, tmp_path, expect=2)
    slurm_programs.say("squeue", "exit 0")
    out = sweep(slurm_programs, tmp_path).out
    assert len(slurm_programs.calls("sbatch")) == 2 and "0 in jobs" in out and "submitted job 102" in out


def test_a_machine_without_slurm_is_told(tmp_path):
    write_spec(tmp_path)
    err = run("sweep", "spec.json", "--slurm", cwd=tmp_path, expect=2, environment={"PATH": "/nowhere"}).err
    assert "cannot start scontrol: No such file or directory; --slurm needs Slurm's commands in PATH" in err
    assert not (tmp_path / "results/tiny").exists()


def test_words_of_sbatch_that_are_no_job_id_are_quoted(slurm_programs, tmp_path):
    slurm_programs.say("sbatch", "echo soon")
    assert 'sbatch --parsable: got "soon", want a job id' in sweep(slurm_programs, tmp_path, expect=2).err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--slurm", "--", "--array=1-2"), "got --array=1-2, want none of --array: droptest numbers the tasks"),
        (("--slurm", "--", "-n", "3"), "got -n, want none of --ntasks"),
        (("--slurm", "--jobs", "2"), "--jobs excludes --slurm"),
        (("--array-limit", "2"), "--array-limit requires --slurm"),
        (("--dry-run",), "--dry-run requires --slurm"),
        (("--slurm", "--array-limit", "0"), "--array-limit"),
        (("--", "--mem=1G"), "got options of sbatch (--mem=1G), but no --slurm"),
        (("other.json",), 'got "other.json" beyond its last argument'),
        (("--slurm", "--partition=gpu"), 'unknown option "--partition"'),
    ],
)
def test_options_that_do_not_go_together_are_named(words, text, tmp_path):
    write_spec(tmp_path)
    assert text in run("sweep", "spec.json", *words, cwd=tmp_path, expect=2).err
    assert not (tmp_path / "results").exists()


def test_a_task_by_hand_gives_the_records_of_a_sweep(slurm_programs, tmp_path):
    sweep(slurm_programs, tmp_path, "--runs-per-task", 3)
    task = run("sweep-task", ARRAY, 2, cwd=tmp_path)
    ids = ids_of_sweep(tmp_path)
    assert [folder.name for folder in run_folders(tmp_path) if (folder / "summary.json").exists()] == [ids[3]]
    assert f"run {ids[3]} (loss_rate: 0.1, seed 1): completed: validation loss " in task.out
    run("sweep", "spec.json", "--out", "alone", cwd=tmp_path)
    ours = summary_of(tmp_path / "results/tiny" / ids[3])
    theirs = summary_of(tmp_path / "alone/tiny" / ids[3])
    for name in ("run_id", "point", "validation", "train", "status", "steps", "tokens"):
        assert ours.get(name) == theirs.get(name)
    # Started again, it finds its result.
    before = (tmp_path / "results/tiny" / ids[3] / "summary.json").stat().st_mtime_ns
    run("sweep-task", ARRAY, 2, cwd=tmp_path)
    assert (tmp_path / "results/tiny" / ids[3] / "summary.json").stat().st_mtime_ns == before


def test_tasks_that_are_not_there_or_of_another_program_are_refused(slurm_programs, tmp_path):
    sweep(slurm_programs, tmp_path)
    assert "got task 2, want 1 to 1" in run("sweep-task", ARRAY, 2, cwd=tmp_path, expect=2).err
    assert "cannot be read" in run("sweep-task", "results/tiny/slurm/array_7", 1, cwd=tmp_path, expect=2).err
    tasks = tmp_path / ARRAY / "tasks.jsonl"
    tasks.write_text(tasks.read_text().replace(ids_of_sweep(tmp_path)[0], "0" * 16))
    err = run("sweep-task", ARRAY, 1, cwd=tmp_path, expect=2).err
    assert '/runs/0/run_id: got "0000000000000000", but this droptest gives the run the id' in err


def test_a_run_whose_data_changed_fails_and_the_others_of_its_task_go_on(slurm_programs, tmp_path):
    shutil.copy(tmp_path / "corpus.txt", tmp_path / "other.txt")
    (tmp_path / "other.txt").write_text((tmp_path / "other.txt").read_text() + "more")
    write_spec(tmp_path, sweep={"zip": {"/data/text": ["other.txt", "corpus.txt"]}})
    sweep(slurm_programs, tmp_path)
    (tmp_path / "other.txt").write_text("changed " * 3000)
    task = run("sweep-task", ARRAY, 1, cwd=tmp_path, expect=1)
    first, second = ids_of_sweep(tmp_path)
    assert summary_of(tmp_path / "results/tiny" / first)["status"] == "failed"
    assert "other.txt" in summary_of(tmp_path / "results/tiny" / first)["error"]
    assert summary_of(tmp_path / "results/tiny" / second)["status"] == "completed"
    assert f"error: run {first} " in task.err


@pytest.fixture
def long_task(slurm_programs, tmp_path, holds):
    """A task whose run waits in the middle, the folder of the run, and the id of its process."""
    write_spec(tmp_path)
    sweep(slurm_programs, tmp_path)
    holds.at("step-5")
    task = start("sweep-task", ARRAY, 1, cwd=tmp_path, environment=holds.environment)
    (run_id,) = ids_of_sweep(tmp_path)
    worker = holds.reached("step-5", 2)[0][1]
    yield task, tmp_path / "results/tiny" / run_id, worker
    task.kill()
    task.communicate()


def test_a_task_that_is_told_to_end_leaves_a_run_that_can_be_started_again(long_task):
    task, folder, _ = long_task
    task.send_signal(signal.SIGTERM)
    assert task.wait(60) == 130
    assert "stopped: 0 of 1 runs of the task have ended" in task.stderr.read()
    assert not (folder / "summary.json").exists() and not (folder / "lock").exists()


def test_a_signal_to_the_whole_job_is_no_failure_of_the_run(long_task):
    task, folder, worker = long_task
    os.kill(worker, signal.SIGTERM)
    wait_until(lambda: not Path(f"/proc/{worker}").exists())  # the task has seen its end
    task.send_signal(signal.SIGTERM)
    assert task.wait(60) == 130
    assert not (folder / "summary.json").exists()


def test_a_second_task_leaves_a_busy_run_alone(long_task, tmp_path):
    second = run("sweep-task", ARRAY, 1, cwd=tmp_path, expect=3)
    assert "is busy: process " in second.err
