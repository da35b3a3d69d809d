# SPDX-License-Identifier: Apache-2.0
"""droptest sweep: how many runs at once, and on which cores."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

from cli_harness import BINARY, CLEAN_ENVIRONMENT, processes_with, run, run_folders, wait_until, write_spec


@contextmanager
def sweeping(folder, holds, *options, cores=None, point="step-3"):
    """A sweep of which each run waits at the point, in the block, allowed to use these cores alone."""
    command = [BINARY, "sweep", "spec.json", "--quiet", "--out", str(folder / "results"), *options]
    holds.at(point)
    old = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or old)
    try:
        sweep = subprocess.Popen(command, cwd=folder, env=CLEAN_ENVIRONMENT | holds.environment)
    finally:
        os.sched_setaffinity(0, old)
    try:
        yield
    finally:
        sweep.terminate()
        sweep.wait(timeout=600)


def workers(folder, holds, count):
    """The processes of the runs, once so many wait at the point: all their threads are there."""
    holds.reached("step-3", 2 * count)
    return processes_with(f"worker {folder}/results/")


def cores_of(process):
    """The cores of each thread of a process."""
    return [os.sched_getaffinity(int(thread.name)) for thread in Path(f"/proc/{process}/task").iterdir()]


def test_runs_at_once_have_cores_of_their_own(tmp_path, holds, all_cores):
    write_spec(tmp_path, repeat={"seeds": 3})
    with sweeping(tmp_path, holds, "--jobs", "2"):
        first, second = workers(tmp_path, holds, 2)
        for process in (first, second):
            threads = cores_of(process)
            assert len(threads) >= 2, "two ranks"
            assert all(cores == threads[0] for cores in threads)
        assert not cores_of(first)[0] & cores_of(second)[0]
        assert cores_of(first)[0] | cores_of(second)[0] == all_cores


def test_unpinned_runs_may_use_all_cores(tmp_path, holds, all_cores):
    write_spec(tmp_path, repeat={"seeds": 2})
    with sweeping(tmp_path, holds, "--jobs", "2", "--pin", "none"):
        assert all(cores == all_cores for process in workers(tmp_path, holds, 2) for cores in cores_of(process))


def test_by_default_there_are_as_many_runs_as_allowed_cores(tmp_path, holds, all_cores):
    write_spec(tmp_path, repeat={"seeds": 3})
    core = {max(all_cores)}
    with sweeping(tmp_path, holds, cores=core):
        (process,) = workers(tmp_path, holds, 1)
        assert all(cores == core for cores in cores_of(process))


def test_the_last_runs_get_the_cores_that_fall_free(tmp_path, holds, all_cores):
    # The first point has ended before the step at which the second one waits.
    write_spec(tmp_path, sweep={"cross": {"/training/steps": [4, 12]}})
    with sweeping(tmp_path, holds, "--jobs", "2", point="step-5"):
        process = holds.reached("step-5", 2)[0][1]
        wait_until(lambda: any((folder / "summary.json").exists() for folder in run_folders(tmp_path)))
        wait_until(lambda: all(cores == all_cores for cores in cores_of(process)))


def test_fewer_runs_than_cores_share_all_of_them(tmp_path, holds, all_cores):
    write_spec(tmp_path)
    with sweeping(tmp_path, holds):
        (process,) = workers(tmp_path, holds, 1)
        assert all(cores == all_cores for cores in cores_of(process))


def test_more_runs_at_once_than_cores_are_left_to_the_kernel(tmp_path, holds):
    write_spec(tmp_path, repeat={"seeds": 2})
    core = {min(os.sched_getaffinity(0))}
    with sweeping(tmp_path, holds, "--jobs", "2", cores=core):
        processes = workers(tmp_path, holds, 2)
        assert len(processes) == 2
        assert all(cores == core for process in processes for cores in cores_of(process))


def test_an_unknown_way_to_pin_is_refused(tmp_path):
    write_spec(tmp_path)
    error = run("sweep", "spec.json", "--pin", "sockets", cwd=tmp_path, expect=2).err
    assert error.startswith("droptest: error: ") and "sockets" in error and "none" in error and "cores" in error
