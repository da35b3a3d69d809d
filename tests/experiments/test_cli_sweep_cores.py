# SPDX-License-Identifier: Apache-2.0
"""droptest sweep: how many runs at once, and on which cores."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_harness import BINARY, CLEAN_ENVIRONMENT, metrics_of, processes_with, run, run_folders, wait_until, write_spec

ALL = os.sched_getaffinity(0)
LONG = {"steps": 10_000_000, "batch_sequences": 2, "learning_rate": 0.001}

needs_two_cores = pytest.mark.skipif(len(ALL) < 2, reason="needs two cores")


@contextmanager
def sweeping(folder, *options, cores=ALL):
    """A sweep that goes on until the block ends, allowed to use these cores alone."""
    command = [BINARY, "sweep", "spec.json", "--quiet", "--out", str(folder / "results"), *options]
    old = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        sweep = subprocess.Popen(command, cwd=folder, env=CLEAN_ENVIRONMENT)
    finally:
        os.sched_setaffinity(0, old)
    try:
        yield
    finally:
        sweep.terminate()
        sweep.wait(timeout=30)


def workers(folder, count):
    """The processes of the runs, once there are so many and each has taken steps: all their threads are there."""

    def all_train():
        logs = [f / "metrics.jsonl" for f in run_folders(folder)]
        training = [f for f in logs if f.exists() and len(metrics_of(f.parent)) > 2]
        return len(training) >= count and processes_with(f"worker {folder}/results/")

    return wait_until(all_train)


def cores_of(process):
    """The cores of each thread of a process."""
    return [os.sched_getaffinity(int(thread.name)) for thread in Path(f"/proc/{process}/task").iterdir()]


@needs_two_cores
def test_runs_at_once_have_cores_of_their_own(tmp_path):
    write_spec(tmp_path, training=LONG, repeat={"seeds": 3})
    with sweeping(tmp_path, "--jobs", "2"):
        first, second = workers(tmp_path, 2)
        for process in (first, second):
            threads = cores_of(process)
            assert len(threads) >= 2, "two ranks"
            assert all(cores == threads[0] for cores in threads)
        assert not cores_of(first)[0] & cores_of(second)[0]
        assert cores_of(first)[0] | cores_of(second)[0] == ALL


@needs_two_cores
def test_unpinned_runs_may_use_all_cores(tmp_path):
    write_spec(tmp_path, training=LONG, repeat={"seeds": 2})
    with sweeping(tmp_path, "--jobs", "2", "--pin", "none"):
        assert all(cores == ALL for process in workers(tmp_path, 2) for cores in cores_of(process))


@needs_two_cores
def test_by_default_there_are_as_many_runs_as_allowed_cores(tmp_path):
    write_spec(tmp_path, training=LONG, repeat={"seeds": 3})
    core = {max(ALL)}
    with sweeping(tmp_path, cores=core):
        (process,) = workers(tmp_path, 1)
        assert all(cores == core for cores in cores_of(process))


@needs_two_cores
def test_the_last_runs_get_the_cores_that_fall_free(tmp_path):
    write_spec(tmp_path, sweep={"cross": {"/training/steps": [400, LONG["steps"]]}})
    with sweeping(tmp_path, "--jobs", "2"):
        wait_until(lambda: any((folder / "summary.json").exists() for folder in run_folders(tmp_path)))
        (process,) = wait_until(lambda: len(found := processes_with(f"worker {tmp_path}/results/")) == 1 and found)
        wait_until(lambda: all(cores == ALL for cores in cores_of(process)), seconds=10)


@needs_two_cores
def test_fewer_runs_than_cores_share_all_of_them(tmp_path):
    write_spec(tmp_path, training=LONG)
    with sweeping(tmp_path):
        (process,) = workers(tmp_path, 1)
        assert all(cores == ALL for cores in cores_of(process))


def test_more_runs_at_once_than_cores_are_left_to_the_kernel(tmp_path):
    write_spec(tmp_path, training=LONG, repeat={"seeds": 2})
    core = {min(ALL)}
    with sweeping(tmp_path, "--jobs", "2", cores=core):
        processes = workers(tmp_path, 2)
        assert len(processes) == 2
        assert all(cores == core for process in processes for cores in cores_of(process))


def test_an_unknown_way_to_pin_is_refused(tmp_path):
    write_spec(tmp_path)
    error = run("sweep", "spec.json", "--pin", "sockets", cwd=tmp_path, expect=2).err
    assert error.startswith("droptest: error: ") and "sockets" in error and "none" in error and "cores" in error
