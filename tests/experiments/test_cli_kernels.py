# SPDX-License-Identifier: Apache-2.0
"""Implementations of operations chosen in the spec, by name and as shared objects, through the droptest command."""

import json
import shutil
from pathlib import Path

import pytest
from cli_harness import BINARY, metrics_of, run, run_folders, summary_of, write_corpus, write_spec

LIBRARIES = Path(BINARY).parents[1] / "tests/models"
DEFAULTS = {"attention": "flash", "matmul": "onednn"}
NANO = {
    "model": {"preset": "nano"},
    "parallel": {"tensor": 1},
    "network": {},
    "training": {"steps": 6, "batch_sequences": 2, "sequence_tokens": 70, "learning_rate": 0.003, "warmup_steps": 2},
    "record": {"every_steps": 1, "sample_every_steps": 0},
}


def library(name):
    path = LIBRARIES / f"{name}.so"
    if not path.exists():
        pytest.skip(f"{path} is not built: it is part of droptest_models_tests")
    return str(path)


def trained(folder, **changes):
    """Runs a spec; the folder of its records."""
    write_spec(folder, name="one", **changes)
    known = set(run_folders(folder, "one"))
    run("run", "spec.json", "--quiet", cwd=folder)
    (new,) = set(run_folders(folder, "one")) - known
    return new


def losses(run_folder):
    return [line["train_loss"] for line in metrics_of(run_folder) if line.get("train_loss") is not None]


def expect_close(got, want):
    """Rounding before the first update; AdamW makes whole steps of gradients that are near rounding, so later more."""
    assert got[0] == pytest.approx(want[0], rel=1e-7)
    assert got == pytest.approx(want, rel=1e-4)


def error_of(folder, *command, **changes):
    write_spec(folder, name="one", **changes)
    return run(*command, "spec.json", cwd=folder, expect=2).err


@pytest.fixture
def folder(tmp_path):
    write_corpus(tmp_path / "corpus.txt")
    return tmp_path


@pytest.fixture(scope="module")
def losses_of_flash(tmp_path_factory):
    """The losses of NANO with the default kernels."""
    folder = tmp_path_factory.mktemp("flash")
    write_corpus(folder / "corpus.txt")
    return losses(trained(folder, **NANO))


def test_list_kernels_says_operation_device_and_default(tmp_path):
    listed = json.loads(run("list", "kernels", "--json", cwd=tmp_path).out)
    assert list(listed) == ["kernels"]
    entries = listed["kernels"]
    names = [(e["operation"], e["name"], e["device"]) for e in entries]
    assert ("attention", "reference", "cpu") in names and ("attention", "plain", "cuda") in names
    assert {e["operation"]: e["name"] for e in entries if e["device"] == "cpu" and e["default"]} == DEFAULTS
    for operation, device in {(e["operation"], e["device"]) for e in entries}:
        of_operation = [e for e in entries if (e["operation"], e["device"]) == (operation, device)]
        assert sum(e["default"] for e in of_operation) == 1
    assert next(e for e in entries if e["name"] == "reference")["element_types"] == ["float32", "float64"]
    text = run("list", "kernels", cwd=tmp_path).out
    assert text.startswith("kernels:\n") and "cpu, default" in text and "models:" not in text
    assert json.loads(run("list", "--json", cwd=tmp_path).out)["kernels"] == entries
    assert "known values: models" in run("list", "kernel_registry", cwd=tmp_path, expect=2).err


def test_the_default_by_name_is_the_same_run(folder):
    first = trained(folder, record={"every_steps": 2})
    write_spec(folder, name="one", kernels=DEFAULTS, record={"every_steps": 2})
    assert "nothing is to do" in run("plan", "spec.json", cwd=folder).out
    assert "kernels" not in json.loads((first / "spec.json").read_text())
    assert summary_of(first)["kernels"] == DEFAULTS


def test_reference_kernels_train_alike_and_are_reproducible(folder, losses_of_flash):
    by_name = {"attention": "reference"}
    reference = trained(folder, kernels=by_name, **NANO)
    assert summary_of(reference)["kernels"] == DEFAULTS | by_name
    assert losses(reference) != losses_of_flash  # the kernel that was asked for ran
    expect_close(losses(reference), losses_of_flash)
    again = losses(reference)
    shutil.rmtree(reference)
    threads = {"name": "local", "threads_per_rank": 2}
    assert losses(trained(folder, kernels=by_name, backend=threads, **NANO)) == again
    for matmul in ("eigen", "reference"):
        other = trained(folder, kernels={"matmul": matmul}, **NANO)
        assert losses(other) != losses_of_flash
        expect_close(losses(other), losses_of_flash)


def test_memory_is_planned_for_the_kernel_that_runs(folder):
    def activations(**changes):
        write_spec(folder, name="one", **NANO, **changes)
        return json.loads(run("plan", "spec.json", "--json", cwd=folder).out)["runs"][0]["memory"]["activations"]

    flash, reference = activations(), activations(kernels={"attention": "reference"})
    run("run", "spec.json", "--quiet", cwd=folder)
    (run_folder,) = run_folders(folder, "one")
    assert summary_of(run_folder)["memory"]["model"]["activations"]["bytes"] == reference != flash


def test_a_shared_object_computes_the_run(folder, losses_of_flash):
    path = library("attention_library")
    kernels = {"attention": {"library": path}, "matmul": {"library": path}}
    first = trained(folder, kernels=kernels, **NANO)
    record = summary_of(first)["kernels"]
    assert {kernel["name"] for kernel in record.values()} == {"plain C 1.0"}
    assert record["attention"]["library"] == path and len(record["attention"]["sha256"]) == 64
    assert losses(first) != losses_of_flash
    expect_close(losses(first), losses_of_flash)
    # The content is part of the run id, the path is not.
    shutil.copy(path, folder / "own.so")
    kernels = {operation: {"library": "own.so"} for operation in kernels}
    write_spec(folder, name="one", kernels=kernels, **NANO)
    assert first.name in run("plan", "spec.json", cwd=folder).out
    with (folder / "own.so").open("ab") as content:
        content.write(b"\0")
    assert first.name not in run("plan", "spec.json", cwd=folder).out
    kernels["attention"]["sha256"] = record["attention"]["sha256"]
    error = error_of(folder, "run", kernels=kernels, **NANO)
    assert "/kernels/attention/sha256" in error and "own.so" in error


def test_kernels_that_a_run_cannot_have_are_refused_before_it(folder):
    error = error_of(folder, "validate", kernels={"attention": "flahs"})
    assert 'spec.json: /kernels/attention: got "flahs"' in error and 'did you mean "flash"?' in error
    assert "known kernels: flash, cudnn, plain" in error_of(
        folder, "validate", device="cuda", kernels={"attention": "flahs"}
    )
    assert "/kernels/gelu" in error_of(folder, "validate", kernels={"gelu": "reference"})
    assert "/kernels/cross_entropy" in error_of(folder, "validate", kernels={"cross_entropy": "fused"})
    assert "/kernels/attention/library" in error_of(folder, "validate", kernels={"attention": {}})
    missing = {"attention": {"library": "no.so"}}
    assert "spec.json: /kernels/attention/library: " in error_of(folder, "validate", kernels=missing)
    on_cuda = error_of(folder, "validate", device="cuda", kernels=missing)
    assert "/kernels/attention/library" in on_cuda and "cuda" in on_cuda


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("NO_SYMBOL", "has no function droptest_kernels()"),
        ("OTHER_VERSION", "got version 7; want version 1"),
        ("NULL_FUNCTION", "attention->backward: got null"),
    ],
)
def test_shared_objects_that_do_not_fit_are_refused(folder, fault, text):
    path = library(f"faulty_{fault}")
    for command in ("validate", "plan", "run"):
        error = error_of(folder, command, kernels={"attention": {"library": path}})
        assert "spec.json: /kernels/attention/library" in error and path in error and text in error
    assert not (folder / "results").exists()


def test_a_kernel_that_fails_in_a_run_is_named_in_its_record(folder):
    path = library("faulty_FAILING")
    write_spec(folder, name="one", kernels={"attention": {"library": path}})
    error = run("run", "spec.json", "--quiet", cwd=folder, expect=2).err
    (run_folder,) = run_folders(folder, "one")
    for text in (error, summary_of(run_folder)["error"]):
        assert path in text and "attention->forward() returned 3: out of luck" in text
