# SPDX-License-Identifier: Apache-2.0
"""Offload of parameters and optimizer state through the command: same results, named errors, no record lost."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_harness import BINARY, CLEAN_ENVIRONMENT, run, start, tiny_spec, write_corpus

OFFLOAD = {"offload_optimizer": True, "offload_parameters": True}


def written(tmp_path, **changes):
    write_corpus(tmp_path / "corpus.txt")
    (tmp_path / "spec.json").write_text(json.dumps(tiny_spec(**changes)))
    return tmp_path


def lines_of(folder):
    path = next(Path(folder).glob("results/tiny/*/metrics.jsonl"), None)
    if path is None:
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [{key: line[key] for key in ("step", "train_loss", "validation_loss") if key in line} for line in lines]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_offload_changes_no_loss_and_no_run_id(tmp_path, zero):
    parallel = {"data": 2, "zero": zero}
    found = []
    # With ZeRO 3 a backward pass gathers parameters anew, and loses other packets of them than the forward pass did.
    with_activations = OFFLOAD | {"strategy": "extreme", "cut": False} if zero < 3 else OFFLOAD
    for memory in (None, OFFLOAD, with_activations):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        written(folder, parallel=parallel, **({"memory": memory} if memory else {}))
        run("run", "spec.json", cwd=folder)
        summary = json.loads(next(folder.glob("results/tiny/*/summary.json")).read_text())
        found.append((summary["run_id"], lines_of(folder)))
        model = summary["memory"]["model"]
        assert ("offload_buffers" in model) == (memory is not None)
        assert memory is None or model["optimizer"]["bytes"] == 0
    assert found[0] == found[1] == found[2]


def test_a_checkpoint_goes_on_with_offload_and_without(tmp_path):
    for memory, other in ((None, OFFLOAD), (OFFLOAD, None)):
        folder = tmp_path / ("without" if memory is None else "with")
        folder.mkdir()
        chosen = lambda value: ["--set", f"/memory={json.dumps(value)}"] if value else []  # noqa: E731
        written(folder, checkpoint={"every_steps": 4, "keep": 10})
        run("run", "spec.json", *chosen(memory), cwd=folder)
        want = lines_of(folder)
        kept = next(folder.glob("results/tiny/*"))
        (kept / "summary.json").unlink()
        shutil.rmtree(kept / "checkpoints" / "step-12")
        run("run", "spec.json", *chosen(other), cwd=folder)
        assert json.loads((kept / "summary.json").read_text())["resumed_at"] == [8]
        assert lines_of(folder) == want


def test_state_is_cut_anew_for_a_layout_with_offload(tmp_path):
    written(tmp_path, checkpoint={"every_steps": 4, "keep": 10})
    run("run", "spec.json", cwd=tmp_path)
    found = []
    for memory in ([], ["--set", f"/memory={json.dumps(OFFLOAD)}"]):
        folder = shutil.copytree(tmp_path / "results", tmp_path / str(len(found)) / "results").parent
        shutil.copy(tmp_path / "corpus.txt", folder)
        (first,) = folder.glob("results/tiny/*")
        layout = ["--set", "/parallel/tensor=1", "--set", "/parallel/data=2", "--set", "/parallel/zero=1"]
        run("resume", first.relative_to(folder), "--at", "8", *layout, *memory, cwd=folder)
        (second,) = set(folder.glob("results/tiny/*")) - {first}
        found.append((second.name, [json.loads(line).get("train_loss") for line in (second / "metrics.jsonl").open()]))
    assert found[0] == found[1]


def test_a_full_disk_is_named_before_training(tmp_path):
    folder = written(tmp_path, memory=OFFLOAD,
                     model={"layers": 2, "width": 256, "heads": 4, "context": 32, "vocabulary": 256})  # fmt: skip
    few = 1 << 20
    done = subprocess.run(
        [BINARY, "run", "spec.json"], cwd=folder, env=CLEAN_ENVIRONMENT, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (few, few)),
    )  # fmt: skip
    assert done.returncode != 0
    assert "droptest-offload-" in done.stderr
    assert "bytes for parameters and optimizer state: File too large; want room in this directory" in done.stderr


def test_a_cut_file_is_named_and_no_line_is_lost(tmp_path, holds):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    folder = written(tmp_path, memory=OFFLOAD | {"directory": str(scratch)})
    holds.at("step-5")
    process = start("run", "spec.json", cwd=folder, environment=holds.environment)
    holds.reached("step-5", 2)
    before = lines_of(folder)
    assert before
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        # A connection or another file may be closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if "droptest-offload-" in os.readlink(entry):
                os.truncate(entry, 100)
    holds.release("step-5")
    _, err = process.communicate(timeout=600)
    assert process.returncode != 0
    assert f"offload file {scratch}/droptest-offload-" in err
    assert "the file has been cut" in err
    after = lines_of(folder)
    assert after[: len(before)] == before
    assert json.loads(next(folder.glob("results/tiny/*/summary.json")).read_text())["status"] == "failed"
    assert not any(scratch.iterdir()), "nothing of the file stays"
