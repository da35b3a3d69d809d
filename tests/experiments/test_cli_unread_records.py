# SPDX-License-Identifier: Apache-2.0
"""Records that are damaged, cut, of another version or in a folder that cannot be written."""

import json
import os
import subprocess

from cli_harness import BINARY, CLEAN_ENVIRONMENT, metrics_of, run, run_folders, start, summary_of, write_spec
from holds import kill

SWEEP = {"sweep": {"cross": {"/network/loss/loss_rate": [0, 0.1, 0.2, 0.3]}}}


def times_of(folders):
    return {folder: (folder / "summary.json").stat().st_mtime_ns for folder in folders}


def sweep_with_odd_summaries(folder):
    """A finished sweep; of its summaries one is whole, one has members of a later program, and two cannot be read."""
    write_spec(folder, **SWEEP)
    run("sweep", "spec.json", cwd=folder)
    whole, later, cut, newer = run_folders(folder)
    summary = summary_of(later)
    summary["more"] = {"of": "a later program"}
    summary["train"]["more"] = 1
    summary["provenance"]["more"] = []
    (later / "summary.json").write_text(json.dumps(summary))
    text = (cut / "summary.json").read_text()
    (cut / "summary.json").write_text(text[: len(text) // 2])
    (newer / "summary.json").write_text(json.dumps(summary_of(newer) | {"schema_version": 2}))
    return whole, later, cut, newer


def warnings_in(err):
    return [line for line in err.splitlines() if "summary.json" in line]


def assert_two_are_named(err, cut, newer):
    warned = sorted(warnings_in(err))
    expected = sorted([(cut.name, "not JSON"), (newer.name, "/schema_version: got 2, want 1")])
    assert len(warned) == 2, err
    for line, (name, why) in zip(sorted(warned), expected, strict=True):
        assert line.startswith(f"droptest: warning: results/tiny/{name}/summary.json: ") and why in line
        assert line.endswith("; this droptest takes the run as not finished")


def test_summaries_that_cannot_be_read_do_not_stop_a_sweep(tmp_path):
    whole, later, cut, newer = sweep_with_odd_summaries(tmp_path)
    before = times_of([whole, later])
    planned = run("plan", "spec.json", "--json", cwd=tmp_path)
    assert_two_are_named(planned.err, cut, newer)
    swept = run("sweep", "spec.json", cwd=tmp_path)
    assert_two_are_named(swept.err, cut, newer)
    assert times_of([whole, later]) == before, "what is read is not run again"
    assert [summary_of(folder)["status"] for folder in (cut, newer)] == ["completed"] * 2
    assert not warnings_in(run("sweep", "spec.json", cwd=tmp_path).err)


def test_a_summary_that_cannot_be_read_stays_until_there_is_another(tmp_path, holds):
    _, _, cut, newer = sweep_with_odd_summaries(tmp_path)
    before = {folder: (folder / "summary.json").read_bytes() for folder in (cut, newer)}
    holds.at("step-5")
    for folder in (cut, newer):
        process = start("run", folder / "spec.json", cwd=tmp_path, environment=holds.environment)
        holds.reached("step-5", 2)
        kill(process.pid)
        _, err = process.communicate()
        assert len(warnings_in(err)) == 1
        assert (folder / "summary.json").read_bytes() == before[folder]
    holds.release("step-5")
    run("sweep", "spec.json", cwd=tmp_path)
    assert [summary_of(folder)["status"] for folder in (cut, newer)] == ["completed"] * 2


def test_a_sweep_record_that_is_cut_does_not_stop_resume(tmp_path):
    write_spec(tmp_path, **SWEEP)
    run("sweep", "spec.json", cwd=tmp_path)
    folder = run_folders(tmp_path)[0]
    (folder / "summary.json").unlink()
    index = tmp_path / "results/tiny/sweep.json"
    index.write_text(index.read_text()[:100])
    resumed = run("resume", folder, cwd=tmp_path)
    assert "sweep.json" in resumed.err and "the run gets no point of a sweep" in resumed.err
    assert summary_of(folder)["status"] == "completed"


def test_lines_that_metrics_lack_before_a_resume_are_told(tmp_path, holds):
    checkpoint = {"every_steps": 2, "async": False}
    write_spec(tmp_path, checkpoint=checkpoint, record={"every_steps": 1, "sample_every_steps": 0})
    holds.at("step-9")
    process = start("run", "spec.json", cwd=tmp_path, environment=holds.environment)
    holds.reached("step-9", 2)
    kill(process.pid)
    process.communicate()
    holds.release("step-9")
    (folder,) = run_folders(tmp_path)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 9
    (folder / "metrics.jsonl").write_text("".join(lines[:2] + lines[4:7]))
    resumed = run("resume", folder, cwd=tmp_path)
    assert "continues after step 8\n" in resumed.err
    told = ("metrics.jsonl lacks the lines of steps 2 to 3, 7 to 8: before the run was resumed they were lost, or "
            "/record/every_steps was larger")  # fmt: skip
    assert told in resumed.err
    assert {"pointer": "/record/every_steps", "message": told} in summary_of(folder)["warnings"]
    assert [line["step"] for line in metrics_of(folder)] == [0, 1, 4, 5, 6, 9, 10, 11, 12]


def test_a_folder_whose_name_is_not_utf_8_is_planned_and_trained_in(tmp_path):
    out = os.fsdecode(b"results-\xff")
    write_spec(tmp_path, checkpoint={"every_steps": 2})
    run("run", "spec.json", "--out", out, "--quiet", cwd=tmp_path)
    planned = json.loads(run("plan", "spec.json", "--json", "--out", out, cwd=tmp_path).out)
    assert "results-\ufffd" in json.dumps(planned, ensure_ascii=False)
    (folder,) = run_folders(tmp_path, out=out)
    command = [BINARY, "resume", folder, "--set", "/parallel/tensor=1"]
    refused = subprocess.run(command, cwd=tmp_path, env=CLEAN_ENVIRONMENT, capture_output=True)
    assert refused.returncode == 2
    assert b"checkpoints: is not UTF-8, which /start/manifest of a spec has to be" in refused.stderr


def test_a_finished_sweep_is_shown_where_nothing_can_be_written(tmp_path):
    write_spec(tmp_path, **SWEEP)
    first = run("sweep", "spec.json", cwd=tmp_path)
    # No process can make this lock, whatever its rights.
    (tmp_path / "results/tiny/sweep.json.lock").mkdir()
    again = run("sweep", "spec.json", cwd=tmp_path)
    assert again.out == first.out
    # What has to be written is an error, as it was.
    refused = run("sweep", "spec.json", "--set", "/seed=2", cwd=tmp_path, expect=2)
    assert "sweep.json.lock" in refused.err
