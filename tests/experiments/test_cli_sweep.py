# SPDX-License-Identifier: Apache-2.0
"""droptest sweep: several runs at once, failures, Ctrl-C, and going on."""

import hashlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from cli_harness import (
    BINARY,
    CLEAN_ENVIRONMENT,
    metrics_of,
    run,
    run_folders,
    start,
    summary_of,
    wait_until,
    write_spec,
)
from holds import await_request_to_end, kill, state_of

RATES = [0, 0.05, 0.2]


def is_pending(pid, number):
    """Whether the signal waits for the process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) >> (number - 1) & 1 for line in lines if line.startswith(("SigPnd", "ShdPnd")))


def loss_sweep():
    """Three loss rates and two seeds."""
    return {"sweep": {"cross": {"/network/loss/loss_rate": RATES}}, "repeat": {"seeds": 2}}


def test_a_sweep_runs_every_point_once(tmp_path):
    write_spec(tmp_path, **loss_sweep())
    result = run("sweep", "spec.json", "--jobs", "2", cwd=tmp_path)
    folders = run_folders(tmp_path)
    assert len(folders) == 6
    assert {summary_of(f)["status"] for f in folders} == {"completed"}
    assert sorted(p.name for p in folders[0].iterdir()) == [
        "diagnostics.json", "loss_statistics.json", "metrics.jsonl", "spec.json", "summary.json", "weights.safetensors"
    ]  # fmt: skip
    index = json.loads((tmp_path / "results/tiny/sweep.json").read_text())
    assert {r["run_id"] for r in index["runs"]} == {f.name for f in folders}
    by_point = {(r["point"]["/network/loss/loss_rate"], r["seed"]) for r in index["runs"]}
    assert by_point == {(rate, seed) for rate in RATES for seed in (1, 2)}
    for folder in folders:
        assert summary_of(folder)["point"] in [r["point"] for r in index["runs"] if r["run_id"] == folder.name]

    # The table has a line for each run, with its loss.
    for folder in folders:
        loss = f"{summary_of(folder)['validation']['final_loss']:.4f}"
        assert re.search(rf"completed +{loss} +{folder.name}", result.out)
    # Without a terminal: a line for each run that ends, and no control characters.
    lines = result.err.splitlines()
    assert "6/6 runs" in lines[-1] and not set(result.err) & {"\r", "\x1b"}

    # Paired seeds: at step 0, before any packet is lost, equal seeds have equal losses.
    first = {}
    for folder in folders:
        first.setdefault(summary_of(folder)["seed"], set()).add(metrics_of(folder)[0]["validation_loss"])
    assert [len(losses) for losses in first.values()] == [1, 1]

    # The second call finds everything done.
    times = [(f / "summary.json").stat().st_mtime_ns for f in folders]
    run("sweep", "spec.json", cwd=tmp_path)
    assert times == [(f / "summary.json").stat().st_mtime_ns for f in folders]


def test_a_run_and_a_sweep_of_one_agree_on_the_folder(tmp_path):
    write_spec(tmp_path)
    run("sweep", "spec.json", cwd=tmp_path)
    assert "nothing to do" in run("run", "spec.json", cwd=tmp_path).out


def test_a_failing_run_is_recorded_and_the_others_go_on(tmp_path):
    write_spec(tmp_path, **loss_sweep())
    run("sweep", "spec.json", cwd=tmp_path)
    kept, broken = run_folders(tmp_path)[:4], run_folders(tmp_path)[4:]
    for folder in broken:
        (folder / "summary.json").unlink()
        (folder / "weights.safetensors").unlink()
        (folder / "weights.safetensors" / "in the way").mkdir(parents=True)
    result = run("sweep", "spec.json", "--jobs", "2", cwd=tmp_path, expect=1)
    assert {summary_of(f)["status"] for f in kept} == {"completed"}
    assert {summary_of(f)["status"] for f in broken} == {"failed"}
    assert all("weights.safetensors: cannot remove" in summary_of(f)["error"] for f in broken)
    errors = [line for line in result.err.splitlines() if line.startswith("droptest: error: run ")]
    assert len(errors) == 2 and all("cannot remove" in line for line in errors)

    # The obstacles are gone: only the failed runs are run.
    for folder in broken:
        shutil.rmtree(folder / "weights.safetensors")
    times = [(f / "summary.json").stat().st_mtime_ns for f in kept]
    run("sweep", "spec.json", cwd=tmp_path)
    assert {summary_of(f)["status"] for f in run_folders(tmp_path)} == {"completed"}
    assert times == [(f / "summary.json").stat().st_mtime_ns for f in kept]


def test_runs_are_known_by_the_contents_of_their_files(tmp_path):
    write_spec(tmp_path, **loss_sweep())
    (tmp_path / "folder").mkdir()
    run("sweep", "spec.json", cwd=tmp_path)
    first = run_folders(tmp_path)
    corpus = (tmp_path / "corpus.txt").read_bytes()
    assert json.loads((first[0] / "spec.json").read_text())["data"]["sha256"] == hashlib.sha256(corpus).hexdigest()

    # The same content in another place: nothing to do.
    (tmp_path / "corpus.txt").rename(tmp_path / "folder/same.txt")
    run("sweep", "spec.json", "--set", "/data/text=folder/same.txt", cwd=tmp_path)
    assert run_folders(tmp_path) == first

    # Other content in the same place: other runs.
    (tmp_path / "corpus.txt").write_bytes(b"A" + corpus[1:])
    run("sweep", "spec.json", cwd=tmp_path)
    assert len(run_folders(tmp_path)) == 12

    # A run's own spec names the content that it had.
    again = run("run", first[0] / "spec.json", cwd=tmp_path, expect=2)
    other = hashlib.sha256(b"A" + corpus[1:]).hexdigest()
    assert f'/data/sha256: got "{hashlib.sha256(corpus).hexdigest()}", but corpus.txt has "{other}"' in again.err

    # A file that is missing is said before anything is run.
    (tmp_path / "corpus.txt").unlink()
    missing = run("sweep", "spec.json", "--out", "nothing", cwd=tmp_path, expect=2)
    assert "spec.json: /data/text: read corpus.txt: No such file or directory; paths are relative to" in missing.err
    assert not (tmp_path / "nothing").exists()


def test_a_run_that_is_killed_is_recorded(tmp_path, holds):
    write_spec(tmp_path)
    holds.at("step-5")
    sweep = start("sweep", "spec.json", cwd=tmp_path, environment=holds.environment)
    kill(dict(holds.reached("step-5", 2))[0])
    _, err = sweep.communicate(timeout=600)
    assert sweep.returncode == 1
    assert "was killed by signal 9" in err
    (folder,) = run_folders(tmp_path)
    summary = summary_of(folder)
    assert summary["status"] == "failed" and "signal 9" in summary["error"]
    assert summary["steps"] == 4


def test_attempts_count_anew_after_a_checkpoint(tmp_path, holds):
    write_spec(
        tmp_path,
        training={"steps": 40, "batch_sequences": 2, "learning_rate": 0.001},
        checkpoint={"every_steps": 5, "keep": 2, "async": False},
        restart={"attempts": 1, "backoff_seconds": 0.01},
    )
    run("sweep", "spec.json", "--out", "whole", cwd=tmp_path)
    deaths = {"step-8": "step-5", "step-18": "step-15", "step-28": "step-25"}  # more than attempts
    for point in deaths:
        holds.at(point)
    sweep = start("sweep", "spec.json", cwd=tmp_path, environment=holds.environment)
    for point, checkpoint in deaths.items():
        (_, worker), _ = holds.reached(point, 2)
        (folder,) = run_folders(tmp_path)
        assert (folder / "checkpoints" / checkpoint).exists()
        kill(worker)
        holds.release(point)
    _, err = sweep.communicate(timeout=600)
    assert sweep.returncode == 0, err
    (whole,) = run_folders(tmp_path, out="whole")
    losses_of = lambda path: [(line["step"], line.get("train_loss")) for line in metrics_of(path)]  # noqa: E731
    assert losses_of(folder) == losses_of(whole)


def test_ctrl_c_keeps_what_is_finished_and_a_second_call_goes_on(tmp_path, holds):
    # The first point has ended before the step at which the second one waits.
    write_spec(tmp_path, sweep={"cross": {"/training/steps": [4, 12]}})
    holds.at("step-5")
    sweep = start("sweep", "spec.json", "--jobs", "1", cwd=tmp_path, environment=holds.environment)
    (_, worker), _ = holds.reached("step-5", 2)
    sweep.send_signal(signal.SIGINT)
    _, err = sweep.communicate(timeout=600)
    assert sweep.returncode == 130
    assert "1 of 2 runs are kept" in err and "the same command continues" in err
    assert not os.path.exists(f"/proc/{worker}")
    statuses = [summary_of(f)["status"] for f in run_folders(tmp_path) if (f / "summary.json").exists()]
    assert statuses == ["completed"]

    # Going on: the finished run is kept, the other one is run from its start.
    again = start("sweep", "spec.json", "--jobs", "1", cwd=tmp_path, environment=holds.environment)
    holds.reached("step-5", 2)
    again.send_signal(signal.SIGTERM)
    _, err = again.communicate(timeout=600)
    assert again.returncode == 130 and "1 of 2 runs are kept" in err


@pytest.fixture
def heard_signals():
    """Programs that a test starts hear SIGHUP, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("told", [signal.SIGHUP, signal.SIGUSR1])
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_closed_terminal_and_slurms_warning_take_a_checkpoint(tmp_path, holds, heard_signals, command, told):
    write_spec(tmp_path, checkpoint={"every_steps": 100})
    holds.at("step-5")
    process = start(command, "spec.json", cwd=tmp_path, environment=holds.environment)
    worker = dict(holds.reached("step-5", 2))[1]
    os.kill(process.pid, told)
    wait_until(lambda: not is_pending(process.pid, told))
    os.kill(process.pid, told)  # a closed terminal sends it several times
    if worker != process.pid:
        await_request_to_end(worker)
    holds.release("step-5")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    (folder,) = run_folders(tmp_path)
    assert [path.name for path in (folder / "checkpoints").glob("step-*")], err
    run(command, "spec.json", cwd=tmp_path)
    assert summary_of(folder)["status"] == "completed" and summary_of(folder)["resumed_at"]


def test_a_signal_that_is_ignored_stays_so(tmp_path, holds):
    write_spec(tmp_path)
    holds.at("step-5")
    environment = {**CLEAN_ENVIRONMENT, **holds.environment}
    script = f"trap '' HUP; exec {BINARY} run spec.json"
    process = subprocess.Popen(["sh", "-c", script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    holds.reached("step-5", 2)
    process.send_signal(signal.SIGHUP)
    holds.release("step-5")
    assert "completed" in process.communicate(timeout=600)[0] and process.returncode == 0


def test_a_record_that_cannot_be_written_starts_no_more_runs(tmp_path):
    write_spec(tmp_path, sweep={"cross": {"/training/steps": [4, 5, 6]}})
    run("sweep", "spec.json", cwd=tmp_path)
    index = json.loads((tmp_path / "results/tiny/sweep.json").read_text())
    first, second, third = (tmp_path / "results/tiny" / entry["run_id"] for entry in index["runs"])
    for folder in (second, third):
        shutil.rmtree(folder)
    second.write_text("in the way")
    failed = run("sweep", "spec.json", "--jobs", "1", cwd=tmp_path, expect=1)
    assert "no more runs are started" in failed.err and str(second.name) in failed.err
    assert "1 of 3 runs in results/tiny have ended; the same command continues" in failed.err
    assert "completed" in failed.out and not third.exists() and summary_of(first)["status"] == "completed"
    second.unlink()
    run("sweep", "spec.json", cwd=tmp_path)
    assert {summary_of(folder)["status"] for folder in (first, second, third)} == {"completed"}


@pytest.mark.parametrize("line", ["\0" * 40, '{"a": 1}'])
def test_damaged_metrics_of_one_run_do_not_stop_the_others(tmp_path, line):
    write_spec(tmp_path, sweep={"cross": {"/training/steps": [8, 9, 10]}}, checkpoint={"every_steps": 4})
    run("sweep", "spec.json", cwd=tmp_path)
    first, second, third = run_folders(tmp_path)
    for folder in (first, second, third):
        (folder / "summary.json").unlink()
    lines = (second / "metrics.jsonl").read_text().splitlines()
    (second / "metrics.jsonl").write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    failed = run("sweep", "spec.json", "--jobs", "1", cwd=tmp_path, expect=1)
    assert "line 2" in failed.err and "no more runs" not in failed.err
    assert {summary_of(folder)["status"] for folder in (first, third)} == {"completed"}
    assert summary_of(second)["status"] == "failed"


def test_a_full_disk_keeps_what_is_finished_and_prints_it(tmp_path):
    private = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*private, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespaces here")
    write_spec(tmp_path, sweep={"cross": {"/training/steps": [4, 5, 6, 7, 8, 9, 10]}}, record={"weights": "final"})
    run("run", "spec.json", "--run", 1, "--out", "alone", cwd=tmp_path)
    size = sum(path.stat().st_blocks // 2 for path in (tmp_path / "alone").rglob("*"))
    (tmp_path / "results").mkdir()
    script = (
        f"mount -t tmpfs -o size={5 * size // 2 + 64}k none results && {BINARY} sweep spec.json --jobs 1;"
        " code=$?; cp -r results kept; exit $code"
    )
    done = subprocess.run([*private, script], cwd=tmp_path, env=CLEAN_ENVIRONMENT, capture_output=True, text=True,
                          timeout=600, check=False)  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "No space left on device" in done.stderr
    statuses = [json.loads(path.read_text())["status"] for path in (tmp_path / "kept").rglob("summary.json")]
    assert statuses.count("completed") == done.stdout.count(" completed ") >= 1, done.stdout


def test_ranks_on_a_full_disk_say_so_though_their_logs_are_on_it(tmp_path):
    if "gloo (not built)" in run("info", cwd=tmp_path).out:
        pytest.skip("the gloo backend was not built")
    private = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*private, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespaces here")
    write_spec(tmp_path, backend={"name": "gloo"}, record={"every_steps": 1, "weights": "none"},
               training={"steps": 400, "batch_sequences": 4, "learning_rate": 0.01, "warmup_steps": 2})  # fmt: skip
    (tmp_path / "results").mkdir()
    script = f"mount -t tmpfs -o size=160k none results && {BINARY} run spec.json"
    done = subprocess.run([*private, script], cwd=tmp_path, env=CLEAN_ENVIRONMENT, capture_output=True, text=True,
                          timeout=600, check=False)  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"error: rank 0 of 2 ended with exit code 2: .*No space left on device", done.stderr), done.stderr


def test_runs_do_not_outlive_a_sweep_that_is_killed(tmp_path, holds):
    write_spec(tmp_path)
    holds.at("step-3")
    sweep = start("sweep", "spec.json", cwd=tmp_path, environment=holds.environment)
    (_, worker), _ = holds.reached("step-3", 2)
    kill(sweep.pid)
    sweep.communicate()
    wait_until(lambda: not state_of(worker))


def test_a_terminal_gets_one_progress_line(tmp_path):
    write_spec(tmp_path, **loss_sweep())
    parent, child = pty.openpty()
    sweep = subprocess.Popen(
        [BINARY, "sweep", "spec.json"], cwd=tmp_path, env=CLEAN_ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=child
    )
    os.close(child)
    text = b""
    while True:
        try:
            chunk = os.read(parent, 4096)
        except OSError:
            break
        if not chunk:
            break
        text += chunk
    os.close(parent)
    assert sweep.wait(timeout=600) == 0
    shown = text.decode()
    assert shown.count("\n") == 1 and shown.count("\r\x1b") + shown.count("\r[") > 2
    assert "[####################] 6/6 runs" in shown
    assert "steps/s" in shown


def test_divergence_is_no_failure(tmp_path):
    training = {"steps": 50, "batch_sequences": 2, "learning_rate": 1000, "gradient_clip": 0}
    write_spec(tmp_path, training=training, repeat={"seeds": 2})
    result = run("sweep", "spec.json", cwd=tmp_path)
    assert result.out.count("diverged") == 2


def test_the_best_value_of_each_point_is_told_and_labels_are_in_the_records(tmp_path):
    rates = [0.0001, 0.01, 0.02]
    losses = [{"label": "no loss", "value": 0}, {"label": "a fifth", "value": 0.2}]
    write_spec(
        tmp_path,
        sweep={
            "best_over": ["/training/learning_rate"],
            "cross": {"/training/learning_rate": rates, "/network/loss/loss_rate": losses},
        },
        repeat={"seeds": 2},
    )
    out = run("sweep", "spec.json", cwd=tmp_path).out
    index = json.loads((tmp_path / "results/tiny/sweep.json").read_text())
    assert index["best_over"] == ["/training/learning_rate"]
    means = {}
    for entry in index["runs"]:
        summary = summary_of(tmp_path / "results/tiny" / entry["run_id"])
        assert summary["labels"] == entry["labels"]
        (label,) = entry["labels"]
        assert label["pointers"] == ["/network/loss/loss_rate"]
        assert summary["validation"]["selection_tokens"] == summary["validation"]["tokens"] == 256
        last = metrics_of(tmp_path / "results/tiny" / entry["run_id"])[-1]
        assert last["selection_loss"] == summary["validation"]["selection_loss"] != last["validation_loss"]
        losses = (summary["validation"]["selection_loss"], summary["validation"]["final_loss"])
        means.setdefault(label["label"], {}).setdefault(entry["point"]["/training/learning_rate"], []).append(losses)
    table = out.split("best by the mean selection loss over the seeds:\n")[1].splitlines()
    assert table[0].split("  ")[0] == "point"
    for line in table[1:3]:
        by_rate = means[line[: len("no loss")]]
        mean = {rate: [sum(values) / 2 for values in zip(*pairs, strict=True)] for rate, pairs in by_rate.items()}
        best = min(mean, key=lambda rate: mean[rate][0])
        selection, validation = mean[best]
        assert re.search(rf"learning_rate: {best} +{selection:.4f} +{validation:.4f} +2$", line)


def test_jobs_must_be_positive(tmp_path):
    write_spec(tmp_path)
    assert run("sweep", "spec.json", "--jobs", "0", cwd=tmp_path, expect=2).err.startswith("droptest: error: ")
