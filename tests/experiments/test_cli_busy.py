# SPDX-License-Identifier: Apache-2.0
"""Two commands on one folder: the second one does not touch the records of the first."""

import fcntl
import json
import shutil
import signal
from contextlib import contextmanager

import pytest
from cli_harness import metrics_of, run, run_folders, start, summary_of, write_spec

HOLDER = "process 4711 on host node3"


@contextmanager
def held(lock, mode=fcntl.LOCK_EX):
    """A lock, held by this process as droptest holds it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, mode)
        file.write(HOLDER + "\n")
        file.flush()
        yield


def line_with(stream, text):
    """The next line that has the text; blocks until it comes."""
    for line in stream:
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r}")


@pytest.fixture
def being_run(tmp_path):
    """The folder of a run that another process is at work on, with its records so far, and its later result."""
    write_spec(tmp_path)
    run("run", "spec.json", "--out", "finished", cwd=tmp_path)
    (finished,) = run_folders(tmp_path, out="finished")
    folder = tmp_path / "results/tiny" / finished.name
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 0, "tokens": 0, "seconds": 0}\n')
    (folder / "spec.json").write_text("of the first process")
    return folder, finished


def written(folder):
    return {p.name: p.read_text() for p in folder.iterdir() if p.name != "lock"}


def test_a_run_that_another_process_is_at_work_on_is_refused_and_left_alone(being_run, tmp_path):
    folder, _ = being_run
    before = written(folder)
    with held(folder / "lock"):
        refused = run("run", "spec.json", cwd=tmp_path, expect=3)
        assert refused.out == ""
        busy = f"results/tiny/{folder.name} is busy: {HOLDER} is at work on it"
        assert refused.err == f"droptest: error: {busy}; try again once it has ended, or see --if-busy\n"
        assert written(folder) == before
        skipped = run("run", "spec.json", "--if-busy", "skip", cwd=tmp_path, expect=3)
        assert skipped.out.startswith(f"skipped: {busy}") and skipped.err == ""
        assert written(folder) == before
    # The holder has ended without a result.
    run("run", "spec.json", cwd=tmp_path)
    assert summary_of(folder)["status"] == "completed"
    assert not (folder / "lock").exists()
    wrong = run("run", "spec.json", "--if-busy", "hope", cwd=tmp_path, expect=2).err
    assert "--if-busy" in wrong and "hope" in wrong and "skip" in wrong


def test_a_run_can_wait_for_the_process_that_is_at_work_on_it(being_run, tmp_path):
    folder, _ = being_run
    with held(folder / "lock"):
        second = start("run", "spec.json", "--if-busy", "wait", cwd=tmp_path)
        line = line_with(second.stderr, "waiting for it")
        assert HOLDER in line and folder.name in line
        assert written(folder)["spec.json"] == "of the first process"
    out, err = second.communicate(timeout=600)
    assert second.returncode == 0, err
    assert "completed" in out and len(metrics_of(folder)) == 7


def test_a_result_that_came_while_waiting_is_not_made_again(being_run, tmp_path):
    folder, finished = being_run
    with held(folder / "lock"):
        second = start("run", "spec.json", "--if-busy", "wait", cwd=tmp_path)
        line_with(second.stderr, "waiting for it")
        for file in finished.iterdir():
            shutil.copy(file, folder)
        before = (folder / "metrics.jsonl").stat().st_mtime_ns
    out, _ = second.communicate(timeout=600)
    assert second.returncode == 0 and "completed" in out
    assert (folder / "metrics.jsonl").stat().st_mtime_ns == before


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path, holds):
    write_spec(tmp_path, record={"every_steps": 1})
    holds.at("step-3")
    first = start("run", "spec.json", cwd=tmp_path, environment=holds.environment)
    holds.reached("step-3", 2)
    (folder,) = run_folders(tmp_path)
    lines = (folder / "metrics.jsonl").read_text()
    for command in ("run", "sweep"):
        refused = run(command, "spec.json", cwd=tmp_path, expect=3)
        assert f"is busy: process {first.pid} on host " in refused.err
    assert (folder / "metrics.jsonl").read_text() == lines
    second = start("run", "spec.json", "--if-busy", "wait", cwd=tmp_path, environment=holds.environment)
    line_with(second.stderr, "waiting for it")
    first.kill()
    first.communicate()
    assert holds.reached("step-3", 2) == [(0, second.pid), (1, second.pid)]
    assert f"process {second.pid} on host " in (folder / "lock").read_text()
    assert [line["step"] for line in metrics_of(folder)] == [0, 1, 2]
    holds.release("step-3")
    _, err = second.communicate(timeout=600)
    assert second.returncode == 0, err


def sweep_of_two(folder):
    """A sweep of two runs, and the folder of the first."""
    write_spec(folder, sweep={"cross": {"/network/loss/loss_rate": [0, 0.1]}})
    run("sweep", "spec.json", "--out", "finished", cwd=folder)
    index = json.loads((folder / "finished/tiny/sweep.json").read_text())
    return [folder / "results/tiny" / r["run_id"] for r in index["runs"]]


def test_a_sweep_leaves_busy_runs_to_their_process_and_says_so(tmp_path):
    busy, free = sweep_of_two(tmp_path)
    with held(busy / "lock"):
        swept = run("sweep", "spec.json", "--jobs", "1", cwd=tmp_path, expect=3)
        assert summary_of(free)["status"] == "completed"
        assert [p.name for p in busy.iterdir()] == ["lock"]
        assert f"droptest: run {busy.name} (loss_rate: 0, seed 1) is busy: {HOLDER} is at work on it\n" in swept.err
        assert swept.err.splitlines()[-1].startswith("droptest: 1 of 2 runs in results/tiny are busy")
        assert free.name in swept.out and busy.name not in swept.out
        assert "1 of 2 runs" in run("sweep", "spec.json", "--quiet", cwd=tmp_path, expect=3).err
    assert "2/2 runs" in run("sweep", "spec.json", cwd=tmp_path).err
    assert summary_of(busy)["status"] == "completed"
    assert not list((tmp_path / "results").rglob("*lock"))


def test_a_corpus_that_changes_while_a_sweep_goes_on_is_not_trained_on(tmp_path):
    first, later = sweep_of_two(tmp_path)
    corpus = tmp_path / "corpus.txt"
    with held(later / "lock"):
        sweep = start("sweep", "spec.json", "--if-busy", "wait", cwd=tmp_path)
        line_with(sweep.stderr, "1/2 runs (1 busy elsewhere)")
        (tmp_path / "new").write_bytes(corpus.read_bytes().swapcase())
        (tmp_path / "new").rename(corpus)
    _, err = sweep.communicate(timeout=600)
    assert sweep.returncode == 1 and f"error: run {later.name}" in err
    assert "/data/sha256: got" in err and "but corpus.txt has" in err
    assert [summary_of(f)["status"] for f in (first, later)] == ["completed", "failed"]


def test_running_again_takes_no_result_away_that_it_does_not_replace(tmp_path):
    rates = {"cross": {"/network/loss/loss_rate": [0, 0.1]}}
    write_spec(tmp_path, record={"weights": "none"}, sweep=rates)
    run("sweep", "spec.json", cwd=tmp_path)
    busy, free = run_folders(tmp_path)
    again = ["sweep", "spec.json", "--set", "/record/weights=final", "--again"]
    with held(busy / "lock"):
        assert "nothing was run" in run(*again, "--if-busy", "fail", cwd=tmp_path, expect=3).err
        assert [summary_of(f)["status"] for f in (busy, free)] == ["completed"] * 2
        run(*again, cwd=tmp_path, expect=3)
        assert summary_of(busy)["status"] == "completed"
        assert [(f / "weights.safetensors").exists() for f in (busy, free)] == [False, True]
    run(*again, cwd=tmp_path)
    assert (busy / "weights.safetensors").exists()


def test_a_sweep_can_refuse_or_wait(tmp_path):
    free, busy = sweep_of_two(tmp_path)
    with held(busy / "lock"):
        refused = run("sweep", "spec.json", "--if-busy", "fail", cwd=tmp_path, expect=3)
        assert HOLDER in refused.err and "nothing was run" in refused.err and not free.exists()
        waiting = start("sweep", "spec.json", "--if-busy", "wait", cwd=tmp_path)
        line_with(waiting.stderr, "1/2 runs (1 busy elsewhere)")
        assert summary_of(free)["status"] == "completed"
    out, err = waiting.communicate(timeout=600)
    assert waiting.returncode == 0, err
    assert summary_of(busy)["status"] == "completed" and busy.name in out

    shutil.rmtree(busy)
    with held(busy / "lock"):
        waiting = start("sweep", "spec.json", "--if-busy", "wait", cwd=tmp_path)
        line_with(waiting.stderr, "1/2 runs (1 busy elsewhere)")
        waiting.send_signal(signal.SIGINT)
        _, err = waiting.communicate(timeout=600)
        assert waiting.returncode == 130 and "1 of 2 runs are kept" in err


def test_a_sweep_takes_a_result_that_came_meanwhile(tmp_path):
    free, busy = sweep_of_two(tmp_path)
    with held(busy / "lock"):
        waiting = start("sweep", "spec.json", "--if-busy", "wait", cwd=tmp_path)
        line_with(waiting.stderr, "1/2 runs (1 busy elsewhere)")
        for file in (tmp_path / "finished/tiny" / busy.name).iterdir():
            shutil.copy(file, busy)
        before = (busy / "summary.json").stat().st_mtime_ns
    out, _ = waiting.communicate(timeout=600)
    assert waiting.returncode == 0 and busy.name in out and free.name in out
    assert (busy / "summary.json").stat().st_mtime_ns == before


def test_the_list_of_a_sweep_that_goes_on_is_not_replaced_by_another(tmp_path):
    write_spec(tmp_path, repeat={"seeds": 1})
    run("sweep", "spec.json", cwd=tmp_path)
    record = tmp_path / "results/tiny/sweep.json"
    before = record.read_text()
    with held(tmp_path / "results/tiny/sweep.json.lock", fcntl.LOCK_SH):
        other = run("sweep", "spec.json", "--set", "/repeat/seeds=2", cwd=tmp_path, expect=3)
        assert f"results/tiny/sweep.json is busy: {HOLDER} is at work on it" in other.err and "/name" in other.err
        assert record.read_text() == before and len(run_folders(tmp_path)) == 1
        run("sweep", "spec.json", cwd=tmp_path)  # the same runs: sweeps may share them
    run("sweep", "spec.json", "--set", "/repeat/seeds=2", cwd=tmp_path)
    assert len(json.loads(record.read_text())["runs"]) == 2


def test_one_search_at_a_time_writes_its_record(tmp_path):
    search = {"low": "1%", "high": "90%", "seeds": 2, "max_runs": 6}
    write_spec(tmp_path, search=search)
    with held(tmp_path / "results/tiny/search.json.lock"):
        refused = run("search", "spec.json", "--if-busy", "fail", cwd=tmp_path, expect=3)
        assert f"results/tiny/search.json is busy: {HOLDER}" in refused.err
        second = start("search", "spec.json", cwd=tmp_path)
        assert HOLDER in line_with(second.stderr, "waiting for it")
        assert not run_folders(tmp_path)
    _, err = second.communicate(timeout=600)
    assert second.returncode == 0, err
    assert (tmp_path / "results/tiny/search.json").exists()


@pytest.fixture
def needs_gloo(tmp_path):
    if "gloo (not built)" in run("info", cwd=tmp_path).out:
        pytest.skip("the gloo backend was not built")


def launch(folder, *options, launch_id):
    environment = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": launch_id}
    return [
        start("run", "spec.json", *options, cwd=folder, environment=environment | {"RANK": r, "LOCAL_RANK": r})
        for r in ("0", "1")
    ]  # fmt: skip


@pytest.mark.usefixtures("needs_gloo")
def test_of_ranks_that_are_processes_one_holds_the_lock(tmp_path):
    write_spec(tmp_path, backend={"name": "gloo", "timeout_seconds": 20})
    run("run", "spec.json", "--out", "finished", cwd=tmp_path)
    (finished,) = run_folders(tmp_path, out="finished")
    folder = tmp_path / "results/tiny" / finished.name
    with held(folder / "lock"):
        assert HOLDER in run("run", "spec.json", cwd=tmp_path, expect=3).err
        ranks = launch(tmp_path, launch_id="one")
        errors = [rank.communicate(timeout=600)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [3, 1]
        assert all(f"is busy: {HOLDER}" in error for error in errors), errors
        assert not (folder / "summary.json").exists()
        waiting = launch(tmp_path, "--if-busy", "wait", launch_id="two")
        assert HOLDER in line_with(waiting[0].stderr, "waiting for it")
    errors = [rank.communicate(timeout=600)[1] for rank in waiting]
    assert [rank.returncode for rank in waiting] == [0, 0], errors
    assert summary_of(folder)["status"] == "completed"


@pytest.mark.usefixtures("needs_gloo")
def test_the_parent_of_ranks_holds_the_lock(tmp_path, holds):
    write_spec(tmp_path, backend={"name": "gloo", "timeout_seconds": 20})
    holds.at("step-3")
    first = start("run", "spec.json", "--out", tmp_path / "out", cwd=tmp_path, environment=holds.environment)
    ranks = holds.reached("step-3", 2)
    refused = run("run", "spec.json", "--out", tmp_path / "out", cwd=tmp_path, expect=3)
    assert f"is busy: process {first.pid} on host " in refused.err
    assert holds.reached("step-3", 2) == ranks
    holds.release("step-3")
    _, err = first.communicate(timeout=600)
    assert first.returncode == 0, err
