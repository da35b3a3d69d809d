# SPDX-License-Identifier: Apache-2.0
"""droptest watch, --openmetrics, events.jsonl and alerts, as users meet them."""

import json
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_harness import (
    BINARY,
    CLEAN_ENVIRONMENT,
    events_of,
    metrics_of,
    run,
    run_folders,
    start,
    summary_of,
    wait_until,
    write_spec,
)

SWEEP = {"sweep": {"cross": {"/network/loss/loss_rate": [0.05, 0.2]}}, "repeat": {"seeds": 2}}
# Diverges at its peak: the learning rate is absurd.
SPIKE = {
    "training": {"steps": 60, "batch_sequences": 4, "learning_rate": 3, "warmup_steps": 40, "gradient_clip": 0},
    "record": {"every_steps": 1, "sample_every_steps": 0},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    write_spec(folder, **SWEEP)
    run("sweep", "spec.json", "--openmetrics", "droptest.prom", cwd=folder)
    return folder


def test_one_frame_has_a_row_for_each_run(finished):
    frame = run("watch", "results/tiny", "--once", cwd=finished).out
    lines = frame.splitlines()
    assert lines[0] == "results/tiny: 4 runs: 4 completed"
    rows = [line for line in lines if re.search(r"^loss_rate: 0\.05|^loss_rate: 0\.2", line)]
    assert len(rows) == 4 and all("completed  12/12" in row for row in rows)
    for folder in run_folders(finished):
        assert f"{summary_of(folder)['validation']['final_loss']:.4f}" in frame
    rates = [float(x) for x in re.findall(r"([0-9.]+) %", frame)]
    assert all(abs(rate - 5) < 2 or abs(rate - 20) < 3 for rate in rates) and len(rates) == 4
    assert "\x1b" not in frame
    # The folder above, and one run's.
    assert "4 runs" in run("watch", "results", "--once", cwd=finished).out
    one = run("watch", run_folders(finished)[0], "--once", cwd=finished).out
    assert "1 run: 1 completed" in one


def test_planned_and_interrupted_runs_are_told_apart(finished, tmp_path):
    shutil.copytree(finished / "results", tmp_path / "results")
    first, second, third, fourth = run_folders(tmp_path)
    shutil.rmtree(first)
    (second / "summary.json").unlink()
    (third / "summary.json").unlink()
    (third / "lock").write_text("process 4711 on host node3\n")
    lines = (third / "metrics.jsonl").read_text().splitlines(keepends=True)
    (third / "metrics.jsonl").write_text("".join(lines[:4]) + '{"step": 99, "torn')
    heading, _, *rows = run("watch", "results/tiny", "--once", cwd=tmp_path).out.splitlines()
    assert "4 runs: 1 waiting, 1 running, 1 stopped, 1 completed" in heading and " tokens/s" in heading
    assert "running" in rows[1] and " 6/12" in rows[1] and "stopped" in rows[2] and "waiting" in rows[4]
    assert f"{summary_of(fourth)['validation']['final_loss']:.4f}" in rows[3]


def test_damaged_records_are_left_out(finished, tmp_path):
    shutil.copytree(finished / "results", tmp_path / "results")
    first, second, third, fourth = run_folders(tmp_path)
    (first / "summary.json").write_text('{"status": 1}')
    (second / "metrics.jsonl").write_text('1\n{"step": -1}\n[[[\n{"step": "x", "tokens": 1, "seconds": 1}\n')
    (third / "events.jsonl").write_text('{"kind": 1}\n{}\n')
    (fourth / "loss_statistics.json").write_text('{"classes": []}')
    for output in ("--tensorboard", "--openmetrics=x.prom"):
        assert "4 runs" in run("watch", "results/tiny", "--once", output, cwd=tmp_path).out


def test_wrong_arguments_are_refused(tmp_path):
    assert "no such folder" in run("watch", "absent", cwd=tmp_path, expect=2).err
    assert "--interval" in run("watch", ".", "--interval", "0", cwd=tmp_path, expect=2).err
    refused = run("watch", ".", "--once", "--openmetrics", "/proc/none.prom", cwd=tmp_path, expect=2)
    assert "/proc/none.prom" in refused.err


def test_a_terminal_is_drawn_over_until_all_runs_have_ended(tmp_path, holds):
    write_spec(tmp_path, training={"steps": 2000, "batch_sequences": 4}, record={"every_steps": 1})
    holds.at("step-9")
    process = start("run", "spec.json", cwd=tmp_path, environment=holds.environment)
    holds.reached("step-9", 2)
    parent, child = pty.openpty()
    watching = subprocess.Popen(
        [BINARY, "watch", "results/tiny", "--interval", "0.1"], cwd=tmp_path, env=CLEAN_ENVIRONMENT, stdout=child
    )
    os.close(child)
    text = b""

    def frames():
        nonlocal text
        text += os.read(parent, 65536)
        return text.count(b"\x1b[H") >= 3

    wait_until(frames)
    process.terminate()
    process.communicate()
    folder = run_folders(tmp_path)[0]
    (folder / "summary.json").write_text((folder / "spec.json").read_text())  # no summary: the run has not ended
    assert watching.poll() is None
    watching.terminate()

    def closed():
        try:
            return not os.read(parent, 65536)
        except OSError:
            return True

    wait_until(closed)
    assert watching.wait(timeout=600) == 130
    os.close(parent)
    assert b"running" in text and b"2000" in text


def test_a_terminal_waits_for_the_first_run(tmp_path):
    (tmp_path / "results/tiny").mkdir(parents=True)
    parent, child = pty.openpty()
    watching = subprocess.Popen(
        [BINARY, "watch", "results/tiny", "--interval", "0.1"], cwd=tmp_path, env=CLEAN_ENVIRONMENT, stdout=child
    )
    os.close(child)
    text = b""

    def read():
        nonlocal text
        try:
            part = os.read(parent, 65536)
        except OSError:
            return False
        text += part
        return bool(part)

    wait_until(lambda: read() and text.count(b"0 runs") >= 3)
    write_spec(tmp_path)
    run("run", "spec.json", cwd=tmp_path)
    wait_until(lambda: not read())
    os.close(parent)
    assert watching.wait(timeout=600) == 0
    assert b"1 run: 1 completed" in text


def parse_metrics(text):
    """Name of a sample -> its type and samples (labels -> value), by OpenMetrics' own parser."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    families = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation.endswith("."), family
        for sample in family.samples:
            found = families.setdefault(sample.name, {"type": family.type, "samples": {}})
            key = tuple(sample.labels.items())
            assert key not in found["samples"]
            found["samples"][key] = sample.value
    for name, family in families.items():
        assert family["type"] == ("counter" if name.endswith("_total") else "gauge")
    return families


def test_metrics_are_those_of_the_records(finished):
    families = parse_metrics((finished / "droptest.prom").read_text())
    assert families["droptest_runs"]["samples"][("experiment", "tiny"), ("state", "completed")] == 4
    assert families["droptest_runs"]["samples"][("experiment", "tiny"), ("state", "failed")] == 0
    for folder in run_folders(finished):
        summary = summary_of(folder)
        point = f"loss_rate: {summary['point']['/network/loss/loss_rate']}"
        labels = (("experiment", "tiny"), ("run", folder.name), ("point", point), ("seed", str(summary["seed"])))
        assert families["droptest_run_steps_total"]["samples"][labels] == 12
        assert families["droptest_run_tokens_total"]["samples"][labels] == summary["tokens"]
        final = summary["validation"]["final_loss"]
        assert families["droptest_run_validation_loss_nats"]["samples"][labels] == final
        counts = json.loads((folder / "loss_statistics.json").read_text())["classes"]["tp_forward"]
        of_class = (*labels, ("class", "tp_forward"))
        assert families["droptest_lost_packets_total"]["samples"][of_class] == counts["lost"]
        for rank in ("0", "1"):
            assert families["droptest_rank_resident_memory_bytes"]["samples"][(*labels, ("rank", rank))] > 1e6


def test_labels_are_escaped(tmp_path):
    rates = [{"label": 'a "b" \\ c', "value": 0.1}, {"label": "ä", "value": 0.2}]
    write_spec(tmp_path, sweep={"cross": {"/network/loss/loss_rate": rates}})
    run("sweep", "spec.json", "--openmetrics", "x.prom", cwd=tmp_path)
    families = parse_metrics((tmp_path / "x.prom").read_text())
    points = {dict(key)["point"] for key in families["droptest_run_steps_total"]["samples"]}
    assert points == {'a "b" \\ c', "ä"}


def test_a_search_keeps_the_files_of_watchers(tmp_path):
    write_spec(tmp_path, search={"low": "1%", "high": "30%", "seeds": 2, "max_runs": 8})
    run("search", "spec.json", "--tensorboard", "--openmetrics", "x.prom", cwd=tmp_path)
    runs = [folder for folder in run_folders(tmp_path) if (folder / "summary.json").exists()]
    assert len(list((tmp_path / "results/tiny/tensorboard").rglob("events.out.tfevents.*"))) == len(runs) >= 2
    assert "droptest_run" in (tmp_path / "x.prom").read_text()


PROMTOOL = shutil.which("promtool", path=f"{Path(__file__).parents[2] / '.cache'}:{os.environ['PATH']}")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed; scripts/install-dependencies test fetches it")
def test_prometheus_reads_the_samples_too(finished):
    """Its format has the type and help of a counter under the name of the samples: these alone are missing there."""
    text = (finished / "droptest.prom").read_text()
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    names = sorted(name for name in parse_metrics(text) if name.endswith("_total"))
    assert done.stderr.splitlines() == [f"{name} no help text" for name in names]


def test_a_loss_of_a_diverged_run_has_few_digits(finished, tmp_path):
    shutil.copytree(finished / "results", tmp_path / "results")
    for folder, loss in zip(run_folders(tmp_path), (4.123e37, -2.5e300, 999999.5, 1e6), strict=True):
        lines = metrics_of(folder)
        lines[-1] |= {"train_loss": loss, "validation_loss": loss}
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    frame = run("watch", "results/tiny", "--once", cwd=tmp_path).out
    for text in ("4.1230e+37", "-2.5000e+300", "999999.5000", "1.0000e+06"):
        assert frame.count(f" {text} ") == 2, frame


def test_a_long_name_leaves_room_for_the_numbers(finished, tmp_path):
    shutil.copytree(finished / "results", tmp_path / "results")
    short = run("watch", "results/tiny", "--once", cwd=tmp_path).out
    for folder in run_folders(tmp_path):
        spec = json.loads((folder / "spec.json").read_text())
        (folder / "spec.json").write_text(json.dumps(spec | {"name": "tiny" + "\u00e9" * 90}))
    frame = run("watch", "results/tiny", "--once", cwd=tmp_path).out
    for folder in run_folders(tmp_path):
        loss = f" {summary_of(folder)['validation']['final_loss']:.4f} "
        assert loss in short and loss in frame, frame
    assert "\N{REPLACEMENT CHARACTER}" not in frame


def test_an_anomaly_is_a_line_of_events(tmp_path):
    write_spec(tmp_path, **SPIKE)
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    events = events_of(folder)
    of_machine = {"throughput_drop", "straggling_rank", "memory_growth"}
    of_run = [event for event in events if event["kind"] not in of_machine]
    assert of_run and {event["kind"] for event in of_run} <= {"loss_spike", "gradient_norm_spike", "not_finite"}
    lines = {line["step"]: line for line in metrics_of(folder)}
    for event in of_run:
        assert lines[event["step"]][event["quantity"]] == event["value"]
        assert event["actions"] == ["log"] and "look at" in event["message"]
    frame = run("watch", folder, "--once", cwd=tmp_path).out
    assert f"anomalies, the last {min(8, len(events))} of {len(events)}" in frame and events[-1]["message"] in frame
    metrics = run("watch", folder, "--openmetrics", "x.prom", cwd=tmp_path)
    assert metrics.out
    samples = parse_metrics((tmp_path / "x.prom").read_text())["droptest_run_anomalies_total"]["samples"]
    assert sum(samples.values()) == len(events)


@pytest.mark.parametrize("backend", ["local", "gloo"])
def test_an_alert_stops_a_run_which_then_has_no_result(tmp_path, backend):
    alerts = [
        {"when": "any", "do": "stop"},
        {"when": "any", "do": {"command": ["sh", "-c", "touch $DROPTEST_RUN/heard"]}},
    ]
    write_spec(tmp_path, alerts=alerts, backend={"name": backend, "timeout_seconds": 20}, **SPIKE)
    result = run("run", "spec.json", cwd=tmp_path, expect=1)
    (folder,) = run_folders(tmp_path)
    summary = summary_of(folder)
    (event,) = events_of(folder)
    assert event["actions"] == ["stop", "command"] and (folder / "heard").exists()
    assert summary["status"] == "failed" and summary["steps"] == event["step"] < 60
    assert summary["error"] == f"an alert stopped the run at step {event['step']}: {event['message']}"
    assert summary["error"] in result.err
    assert metrics_of(folder)[-1]["step"] == event["step"]
    # Without the alert it is the same run, which then goes to its end.
    write_spec(tmp_path, backend={"name": backend, "timeout_seconds": 20}, **SPIKE)
    run("run", "spec.json", cwd=tmp_path)
    assert run_folders(tmp_path) == [folder]
    assert summary_of(folder)["status"] in ("completed", "diverged")


def test_a_program_that_is_not_there_is_found_before_the_run(tmp_path):
    (tmp_path / "notify").write_text("#!/bin/sh\n")
    for program, found in (("no-such-program", False), ("./notify", False), ("sh", True), ("/bin/sh", True)):
        write_spec(tmp_path, alerts=[{"when": "any", "do": {"command": [program, "-c", "true"]}}])
        for command in ("validate", "run") if not found else ("validate",):
            said = run(command, "spec.json", cwd=tmp_path, expect=0 if found else 2)
            wanted = f'/alerts/0/do/command/0: got "{program}", want the path of a program from the working'
            assert (wanted in said.err) != found
    assert not run_folders(tmp_path)
    (tmp_path / "notify").chmod(0o755)
    write_spec(tmp_path, alerts=[{"when": "any", "do": {"command": ["./notify"]}}])
    run("validate", "spec.json", cwd=tmp_path)


def test_a_run_that_an_alert_stopped_can_be_accepted(tmp_path):
    write_spec(tmp_path, **SPIKE | {"alerts": [{"when": "any", "do": "stop"}]}, repeat={"seeds": 1})
    run("sweep", "spec.json", cwd=tmp_path, expect=1)
    (folder,) = run_folders(tmp_path)
    before = summary_of(folder)
    assert before["status"] == "failed" and before["stopped_by_alert"] is True
    run("sweep", "spec.json", "--accept-stopped", cwd=tmp_path)
    assert summary_of(folder) == before, "it was not run again"
    shutil.rmtree(folder)
    out = run("sweep", "spec.json", "--accept-stopped", cwd=tmp_path).out
    assert "failed" in out and summary_of(folder)["stopped_by_alert"] is True
    written = (folder / "summary.json").stat().st_mtime_ns
    run("sweep", "spec.json", cwd=tmp_path, expect=1)
    assert (folder / "summary.json").stat().st_mtime_ns > written, "without the flag it is run again"


def test_a_command_that_hangs_does_not_fail_the_run(tmp_path):
    alerts = [{"when": "any", "do": {"command": ["sleep", "1000"]}}]
    write_spec(tmp_path, alerts=alerts, backend={"name": "gloo", "timeout_seconds": 8}, **SPIKE)
    ran = run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    assert events_of(folder) and summary_of(folder)["status"] in ("completed", "diverged"), ran.err


def test_a_sweep_goes_on_after_an_alert(tmp_path):
    write_spec(tmp_path, alerts=[{"when": "any", "do": "stop"}], repeat={"seeds": 2}, **SPIKE)
    result = run("sweep", "spec.json", cwd=tmp_path, expect=1)
    assert result.err.count("an alert stopped the run at step") == 2
    assert {summary_of(folder)["status"] for folder in run_folders(tmp_path)} == {"failed"}


def test_an_alert_takes_a_checkpoint(tmp_path):
    write_spec(tmp_path, alerts=[{"when": "gradient_norm_spike", "threshold": 3, "do": "checkpoint"}],
               checkpoint={"keep": 50}, **SPIKE)  # fmt: skip
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    asked = [event["step"] for event in events_of(folder) if event["actions"] == ["checkpoint"]]
    steps = sorted(int(path.name.split("-")[1]) for path in (folder / "checkpoints").glob("step-*"))
    assert asked and steps == asked


@pytest.mark.parametrize(
    ("alert", "place", "words"),
    [
        ({"when": "surprise", "do": "log"}, "/alerts/0/when", "loss_spike"),
        ({"when": "any", "do": "explode"}, "/alerts/0/do", "explode"),
        ({"when": "any", "do": {"command": ["true"], "interval_seconds": -1}}, "/alerts/0/do/interval_seconds", "-1"),
        ({"when": "any", "do": {"command": ["true"], "interval": 1}}, "/alerts/0/do/interval", "unknown key"),
        ({"when": "any"}, "/alerts/0", "do"),
        ({"when": "any", "do": {"command": []}}, "/alerts/0/do", "command"),
        ({"when": "any", "do": "checkpoint"}, "/alerts/0/do", "/checkpoint"),
        ({"when": "any", "do": "log", "threshold": 3}, "/alerts/0/threshold", "no threshold of its own"),
        ({"when": "not_finite", "do": "log", "threshold": 3}, "/alerts/0/threshold", "no threshold of its own"),
        ({"when": "loss_spike", "do": "log", "threshold": -1}, "/alerts/0/threshold", "-1"),
    ],
)
def test_alerts_that_cannot_work_are_refused(tmp_path, alert, place, words):
    write_spec(tmp_path, alerts=[alert])
    error = run("validate", "spec.json", cwd=tmp_path, expect=2).err
    assert place in error and words in error
