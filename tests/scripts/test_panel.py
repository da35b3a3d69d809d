# SPDX-License-Identifier: Apache-2.0
"""scripts/panel on a program of the test that has its command line: which runs it asks for, and what it compares."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "panel"


@pytest.fixture
def panel():
    loader = importlib.machinery.SourceFileLoader("panel", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("panel", loader))
    loader.exec_module(module)
    return module


def program(folder: Path, refused: str = "") -> str:
    """A droptest whose specs have three runs and refuse the members that begin with `refused`."""
    path = folder / "droptest"
    path.write_text(
        f"""#!{sys.executable}
import json, pathlib, sys
arguments = sys.argv[1:]
refused = {refused!r}
if arguments[0] == "validate":
    bad = [word for word in arguments if refused and word.startswith(refused)]
    if bad:
        print("error: " + bad[0].split("=")[0] + ": got a value, want it absent", file=sys.stderr)
    sys.exit(1 if bad else 0)
if arguments[0] == "plan":
    print(json.dumps({{"folder": "x", "runs": [{{"packets": 1, "seconds": 2.5}}] * 3}}))
if arguments[0] == "run":
    out = pathlib.Path(arguments[arguments.index("--out") + 1]) / "name" / "id"
    out.mkdir(parents=True)
    number = arguments[arguments.index("--run") + 1]
    (out / "spec.json").write_text(json.dumps({{"ranks": 4, "run": number}}))
    (out / "metrics.jsonl").write_text(json.dumps({{"step": 1, "seconds": id(out), "train_loss": 2.5}}) + "\\n")
"""
    )
    path.chmod(0o755)
    return str(path)


def test_the_first_the_last_and_others_between_are_run_on_each_backend(panel, tmp_path):
    entries = panel.panel_of_spec(program(tmp_path), panel.SPECS / "quickstart.json")
    assert sorted(entries) == [
        "quickstart: plan",
        *(f"quickstart: run {i}, local" for i in (1, 2)),
        "quickstart: run 3, gloo",
        "quickstart: run 3, local",
    ]
    assert entries["quickstart: run 1, local"]["spec.json"] != entries["quickstart: run 2, local"]["spec.json"]
    assert entries["quickstart: run 1, local"]["metrics.jsonl"] == entries["quickstart: run 2, local"]["metrics.jsonl"]


def test_settings_that_a_spec_refuses_are_left_out_but_for_its_four_steps(panel, tmp_path):
    spec = panel.SPECS / "quickstart.json"
    kept = panel.settings_of(program(tmp_path, "/validation/tokens"), spec, "quickstart")
    assert kept == [one for one in panel.SHORT if not one.startswith("/validation/tokens")]
    assert panel.settings_of(program(tmp_path, "/training/steps"), spec, "quickstart") is None


def test_only_members_of_time_and_machine_are_left_out(panel):
    assert panel.lasting("spec.json", {"seconds": 1, "ranks": [0]}) == {"seconds": 1, "ranks": [0]}
    assert panel.lasting("metrics.jsonl", {"seconds": 1, "train_loss": 2}) == {"train_loss": 2}
    memory = {"model": {"gradients": {"bytes": 7, "step": 2}}, "process": 2}
    assert panel.lasting("summary.json", {"memory": memory}) == {"memory": {"model": {"gradients": 7}}}


def test_events_of_the_machine_are_left_out(panel, tmp_path):
    drop, lost = {"kind": "throughput_drop", "step": 3}, {"kind": "lost_samples", "step": 3, "seconds": 1.5}
    (tmp_path / "events.jsonl").write_text(json.dumps(drop) + "\n")
    assert panel.digests_of_run(tmp_path) == {}
    (tmp_path / "events.jsonl").write_text(json.dumps(drop) + "\n" + json.dumps(lost) + "\n")
    assert panel.digests_of_run(tmp_path) == {"events.jsonl": panel.digest([{"kind": "lost_samples", "step": 3}])}


def test_differences_are_named(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    before.write_text(json.dumps({"a: run 1": {"metrics.jsonl": "1"}, "b: plan": {"plan": "2"}}))
    after.write_text(json.dumps({"a: run 1": {"metrics.jsonl": "3"}, "c: plan": {"plan": "2"}}))
    process = subprocess.run([SCRIPT, "compare", before, after], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stdout.splitlines() == ["a: run 1: metrics.jsonl", "b: plan: only before", "c: plan: only after"]
    process = subprocess.run([SCRIPT, "compare", before, before], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (0, "equal: 2 entries\n")
