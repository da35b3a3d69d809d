# SPDX-License-Identifier: Apache-2.0
"""Finished runs that are run once more: their records stay until the new ones are complete."""

import json
import os
import random
import shutil
import signal
import subprocess

import pytest
from cli_harness import (
    BINARY,
    CLEAN_ENVIRONMENT,
    losses_of,
    metrics_of,
    processes_with,
    run,
    run_folders,
    start,
    summary_of,
    wait_until,
    write_spec,
)
from holds import kill

TRAINING = {"steps": 12, "batch_sequences": 4, "learning_rate": 0.01, "warmup_steps": 2}
CHECKPOINT = {"every_steps": 2, "keep": 100, "async": False}
MORE = ("--set", "/record/weights=final", "--again")


def require(backend, folder):
    if backend == "gloo" and "gloo (not built)" in run("info", cwd=folder).out:
        pytest.skip("the gloo backend was not built")


def finished(folder, backend="local", **changes):
    """A finished run without weights, and its folder."""
    write_spec(folder, training=TRAINING, checkpoint=CHECKPOINT, record={"every_steps": 1, "weights": "none"},
               backend={"name": backend, "timeout_seconds": 20}, **changes)  # fmt: skip
    run("run", "spec.json", cwd=folder)
    (one,) = run_folders(folder)
    return one


def records_of(folder):
    """The bytes of all files but those of a repetition and the lock, by name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    names = ((path.relative_to(folder), path) for path in files)
    return {str(name): path.read_bytes() for name, path in names if name.parts[0] not in ("again", "lock")}


def killed_at(point, holds, *command, folder, ranks):
    """Starts the command and kills it when its ranks wait at the point."""
    holds.at(point)
    process = start(*command, cwd=folder, environment=holds.environment)
    kill(process.pid, *({pid for _, pid in holds.reached(point, ranks)} - {process.pid}))
    process.communicate()
    holds.release(point)


@pytest.mark.parametrize("backend", ["local", "gloo"])
@pytest.mark.parametrize("command", ["run", "sweep"])
@pytest.mark.parametrize("point", ["step-1", "step-7"])
def test_a_repetition_that_is_killed_leaves_the_result(tmp_path, holds, backend, command, point):
    require(backend, tmp_path)
    folder = finished(tmp_path, backend)
    before, losses = records_of(folder), losses_of(folder)
    killed_at(point, holds, command, "spec.json", *MORE, folder=tmp_path, ranks=2)
    assert records_of(folder) == before
    assert "nothing to do" in run("run", "spec.json", "--set", "/record/weights=none", cwd=tmp_path).out
    # The next call goes on with the repetition, and its records are those of the run.
    run(command, "spec.json", *MORE, cwd=tmp_path)
    assert (folder / "weights.safetensors").exists() and losses_of(folder) == losses
    assert summary_of(folder).get("resumed_at") == (None if point == "step-1" else [6])
    assert not (folder / "again").exists() and not (folder / "lock").exists()
    assert "nothing to do" in run("run", "spec.json", *MORE, cwd=tmp_path).out


@pytest.mark.parametrize("backend", ["local", "gloo"])
def test_going_back_in_a_finished_run_wants_a_flag_and_leaves_the_result(tmp_path, holds, backend):
    require(backend, tmp_path)
    folder = finished(tmp_path, backend)
    name, before, losses = folder.relative_to(tmp_path), records_of(folder), losses_of(folder)
    refused = run("resume", name, "--at", "4", cwd=tmp_path, expect=2).err
    assert f"{name}: finished; --again runs it once more from step 4" in refused
    assert records_of(folder) == before
    assert "--again requires --at" in run("resume", name, "--again", cwd=tmp_path, expect=2).err
    killed_at("step-7", holds, "resume", name, "--at", "4", "--again", folder=tmp_path, ranks=2)
    assert records_of(folder) == before
    assert "nothing to do" in run("resume", name, cwd=tmp_path).out
    run("resume", name, "--at", "4", "--again", cwd=tmp_path)
    assert summary_of(folder)["resumed_at"] == [4] and losses_of(folder) == losses
    assert [line["step"] for line in metrics_of(folder)] == list(range(13))
    run("checkpoint", "verify", folder, cwd=tmp_path)
    assert not (folder / "again").exists() and not (folder / "lock").exists()


def test_going_back_that_is_stopped_says_where_it_begins_again(tmp_path, holds):
    folder = finished(tmp_path)
    name = folder.relative_to(tmp_path)
    holds.at("step-7")
    process = start("resume", name, "--at", "4", "--again", cwd=tmp_path, environment=holds.environment)
    holds.reached("step-7", 2)
    process.send_signal(signal.SIGTERM)
    holds.release("step-7")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "the same command begins again after step 4" in err
    run("resume", name, "--at", "4", "--again", cwd=tmp_path)
    assert summary_of(folder)["resumed_at"] == [4]


@pytest.mark.parametrize("name", ["metrics.jsonl", "loss_statistics.json"])
def test_a_finished_run_that_lost_a_record_is_run_again_on_request(tmp_path, name):
    folder = finished(tmp_path)
    losses, record = losses_of(folder), (folder / name)
    record.unlink()
    refused = run("run", "spec.json", cwd=tmp_path, expect=2).err
    assert f"finished, but without records that the spec asks for: {name}; --again runs" in refused
    run("run", "spec.json", "--again", cwd=tmp_path)
    assert record.exists() and losses_of(folder) == losses and not (folder / "again").exists()


def test_the_lock_of_a_run_is_held_while_it_goes_back(tmp_path, holds):
    folder = finished(tmp_path)
    holds.at("step-7")
    name = folder.relative_to(tmp_path)
    process = start("resume", name, "--at", "4", "--again", cwd=tmp_path, environment=holds.environment)
    holds.reached("step-7", 2)
    for words in (("resume", name, "--at", "2", "--again"), ("run", "spec.json", *MORE)):
        assert f"is busy: process {process.pid} on host" in run(*words, cwd=tmp_path, expect=3).err
    process.send_signal(signal.SIGTERM)
    holds.release("step-7")
    process.communicate(timeout=600)
    assert summary_of(folder)["status"] == "completed" and "resumed_at" not in summary_of(folder)


def test_a_repetition_that_fails_leaves_the_result(tmp_path, holds):
    require("gloo", tmp_path)
    folder = finished(tmp_path, "gloo")
    before = records_of(folder)
    holds.at("step-7")
    process = start("sweep", "spec.json", *MORE, cwd=tmp_path, environment=holds.environment)
    kill(dict(holds.reached("step-7", 2))[1])
    holds.release("step-7")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 1 and "was killed by signal 9" in err, out + err
    assert records_of(folder) == before
    assert summary_of(folder / "again")["status"] == "failed"
    run("sweep", "spec.json", *MORE, cwd=tmp_path)
    assert (folder / "weights.safetensors").exists() and not (folder / "again").exists()


def test_kills_at_random_moments_never_take_a_result_away(tmp_path):
    folder = finished(tmp_path, sweep={"cross": {"/seed": [1]}})
    name, losses = folder.relative_to(tmp_path), losses_of(folder)
    moments = random.Random(41)
    commands = [
        lambda i: ("run", "spec.json", "--set", f"/record/weights={('final', 'none')[i % 2]}",
                   "--set", f"/record/sample_every_steps={1 + i % 12}", "--again"),
        lambda i: ("sweep", "spec.json", "--set", f"/record/sample_every_steps={1 + i % 12}", "--again"),
        lambda i: ("resume", str(name), "--at", str(2 + 2 * (i % 5)), "--again"),
        lambda i: ("sweep", "spec.json"),
        lambda i: ("resume", str(name)),
    ]  # fmt: skip
    killed = 0
    for i in range(200):
        words = [str(word) for word in commands[i % len(commands)](i)]
        process = subprocess.Popen([BINARY, *words], cwd=tmp_path, env=CLEAN_ENVIRONMENT, start_new_session=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
        try:
            _, err = process.communicate(timeout=moments.uniform(0, 0.4))
            assert process.returncode in (0, 2), err  # 2: a sweep without --again of a run that lacks records
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            wait_until(lambda: not processes_with("", cwd=tmp_path))
            killed += 1
        assert summary_of(folder)["status"] == "completed" and losses_of(folder) == losses, words
        assert run_folders(tmp_path) == [folder]
    assert killed > 0
    run("run", "spec.json", "--set", "/record/links=include", "--again", cwd=tmp_path)
    assert losses_of(folder) == losses and not (folder / "again").exists()


def test_records_that_were_half_moved_are_moved_by_the_next_call(tmp_path):
    folder = finished(tmp_path)
    run(
        "run",
        "spec.json",
        "--set",
        "/record/weights=final",
        "--set",
        "/record/links=include",
        "--out",
        "other",
        cwd=tmp_path,
    )
    (other,) = run_folders(tmp_path, out="other")
    expected = records_of(other)
    names = sorted(path.name for path in other.iterdir() if path.name != "summary.json")
    for done in range(len(names) + 1):
        (tmp_path / "results").rename(tmp_path / f"before-{done}")
        shutil.copytree(tmp_path / f"before-{done}", tmp_path / "results")
        shutil.copytree(other, folder / "again")
        (folder / "again/moved.json").write_text(json.dumps(names))
        for name in names[:done]:
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            os.replace(folder / "again" / name, folder / name)
        run("run", "spec.json", "--set", "/record/links=include", *MORE, cwd=tmp_path)
        assert records_of(folder) == expected and not (folder / "again").exists()
        shutil.rmtree(tmp_path / "results")
        (tmp_path / f"before-{done}").rename(tmp_path / "results")


def complete_repetition_in(folder):
    """Puts a complete repetition, with weights, into the folder `again` of a finished run that has none."""
    again = folder / "again"
    shutil.copytree(folder, again)
    (again / "weights.safetensors").write_bytes(b"new weights")
    return again


def test_a_repetition_whose_records_were_all_moved_is_done(tmp_path):
    folder = finished(tmp_path)
    before = records_of(folder)
    (folder / "again").mkdir()
    (folder / "again/moved.json").write_text('["spec.json"]\n')
    for command in ("run", "sweep"):
        run(command, "spec.json", cwd=tmp_path)
        assert records_of(folder) == before and not (folder / "again").exists()
        (folder / "again").mkdir()
        (folder / "again/moved.json").write_text('["spec.json"]\n')


@pytest.mark.parametrize("command", ["run", "sweep", "sweep --again"])
def test_a_complete_repetition_is_found_by_the_next_call(tmp_path, command):
    folder = finished(tmp_path)
    again = complete_repetition_in(folder)
    new = records_of(again)
    run(*command.split(), "spec.json", cwd=tmp_path)
    assert records_of(folder) == new and not again.exists()


def test_records_that_cannot_be_moved_are_moved_by_the_next_call(tmp_path):
    folder = finished(tmp_path)
    again = complete_repetition_in(folder)
    new = records_of(again)
    (folder / "weights.safetensors/in the way").mkdir(parents=True)
    for command in ("run", "sweep"):
        failed = run(command, "spec.json", cwd=tmp_path, expect=2 if command == "run" else 1)
        assert "weights.safetensors" in failed.err
        assert summary_of(again)["status"] == "completed"
    shutil.rmtree(folder / "weights.safetensors")
    run("run", "spec.json", cwd=tmp_path)
    assert records_of(folder) == new and not again.exists()


def test_going_back_keeps_the_checkpoints_before(tmp_path):
    folder = finished(tmp_path)
    run("resume", folder.relative_to(tmp_path), "--at", "6", "--again", cwd=tmp_path)
    kept = sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*"))
    assert kept[:3] == [2, 4, 6]
