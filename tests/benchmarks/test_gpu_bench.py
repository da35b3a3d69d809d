# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu/gpu_bench without a GPU: its decisions, the shares of a step from given numbers, its specs by the
droptest command, and all of its parts on the fake device."""

import importlib.machinery
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "gpu"
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

import program_runs  # noqa: E402
import spec_runs  # noqa: E402
import step_shares  # noqa: E402

BINARY = Path(os.environ.get("DROPTEST_BINARY", ROOT / "build/dev/experiments/droptest"))
FAKE = BINARY.parents[1] / "tests"
FAKE_PROGRAMS = {
    "experiments/droptest": FAKE / "experiments/droptest_fake_cuda_cli",
    "benchmarks/train_step": FAKE / "benchmarks/droptest_fake_cuda_train_step",
    "benchmarks/gpu/device_rates": FAKE / "benchmarks/droptest_fake_cuda_device_rates",
}


def script():
    """The script as a module, of which each test may change its own copy."""
    loader = importlib.machinery.SourceFileLoader("gpu_bench", str(FOLDER / "gpu_bench"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_bench", loader))
    sys.modules["gpu_bench"] = module
    loader.exec_module(module)
    return module


def bench_of(module, tmp_path, *words, runs=None):
    args = module.arguments(["--out", str(tmp_path / "gpu.json"), *words])
    return module.Bench(args, {"name": "GPU"}, runs)


def test_without_a_gpu_it_says_so_and_does_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, str(FOLDER / "gpu_bench"), "--build", str(tmp_path / "build")],
        cwd=tmp_path, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no GPU" in done.stderr and "nothing was built, tested or timed" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_operations_of_a_token_count_parameters_and_attention():
    bench = script()
    assert bench.SMALL.parameters() == 124_439_808  # docs/models.md
    assert bench.XL.parameters() == 1_557_611_200
    assert bench.SMALL.operations_per_token() == 6 * 124_439_808 + 6 * 12 * 768 * 1024


@pytest.mark.parametrize(
    "words, message",
    [
        (["--parts", "kernels,foo"], "--parts: got foo, want some of build, tests, kernels, choices"),
        (["--parts", "kernels,"], "--parts: got an empty name, want some of build"),
        (["--without", "torch"], "--without: got torch, want some of build"),
        (["--parts", "xl", "--without", "xl"], "--without: got all parts, want one left to run"),
        (["--rounds", "0"], "--rounds: got 0, want a number of at least 1"),
        (["--rounds", "two"], "--rounds: got two, want a number of at least 1"),
        (["--minutes", "nan"], "--minutes: got nan, want a number of at least 0.1"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_done(tmp_path, words, message):
    done = subprocess.run(
        [sys.executable, str(FOLDER / "gpu_bench"), *words], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_parts_run_in_their_own_order_and_can_be_left_out():
    bench = script()
    assert bench.arguments(["--parts", "nano, kernels"]).parts == ["kernels", "nano"]
    rest = bench.arguments(["--without", "build,tests,steps"]).parts
    assert rest == [name for name in bench.NAMES if name not in ("build", "tests", "steps")]


def test_all_parts_together_take_eight_minutes_by_estimate():
    bench = script()
    slack = 15  # a part that takes a little longer than its estimate must not push out the last one
    assert sum(part.seconds(bench.ROUNDS) for part in bench.PARTS) + slack <= 60 * bench.MINUTES <= 480
    assert all(callable(getattr(bench.Bench, part.name)) for part in bench.PARTS)


def test_the_documentation_has_each_part_and_its_seconds():
    bench = script()
    page = (ROOT / "docs" / "performance.md").read_text()
    section = page.split("\n## On a GPU\n")[1].split("\n## ")[0]
    rows = [tuple(cell.strip(" `") for cell in line.split("|")[1:3]) for line in section.splitlines() if "| `" in line]
    assert rows[: len(bench.PARTS)] == [
        (part.name, f"{part.seconds(bench.ROUNDS):g}" if part.name != "build" else "-") for part in bench.PARTS
    ]


@pytest.mark.parametrize("error", [program_runs.ProgramError("no torch"), KeyError("kernels"), ZeroDivisionError()])
def test_a_part_that_fails_leaves_the_results_of_the_others(tmp_path, capsys, error):
    module = script()
    bench = bench_of(module, tmp_path)

    def fail():
        raise error

    bench.kernels = lambda: bench.row("kernel copy", "5 GB/s")
    bench.steps = fail
    bench.nano = lambda: bench.result.update(nano=7)
    for part in module.PARTS:
        if part.name in ("kernels", "steps", "nano"):
            bench.part(part)
            on_disk = json.loads((tmp_path / "gpu.json").read_text())
            assert part.name in on_disk["seconds"], "the file is written after each part"
    assert on_disk["nano"] == 7 and list(on_disk["not_run"]) == ["steps"]
    bench.print_table()
    printed = capsys.readouterr().out
    assert "kernel copy  5 GB/s" in printed and f"NOT RUN OR FAILED: steps: {on_disk['not_run']['steps']}" in printed


def test_a_part_for_which_no_time_is_left_does_not_begin(tmp_path):
    module = script()
    bench = bench_of(module, tmp_path, "--minutes", "0.5")
    bench.tests = bench.nano = lambda: bench.row("ran", "yes")
    parts = {part.name: part for part in module.PARTS}
    bench.part(parts["tests"])
    assert bench.rows == [] and "needs about 64 s, 30 s of --minutes are left" in bench.result["not_run"]["tests"]
    bench.part(parts["nano"])
    assert bench.rows == [("ran", "yes")]
    bench.end = time.monotonic() - 1
    with pytest.raises(program_runs.ProgramError, match=r"the 0\.5 minutes of --minutes are over"):
        bench.timeout()


def test_a_case_that_fails_runs_no_more_and_the_others_go_on(tmp_path):
    module = script()
    bench = bench_of(module, tmp_path, "--rounds", "3")
    order = []

    def rate(name, values):
        def call():
            order.append(name)
            value = values.pop(0)
            if isinstance(value, Exception):
                raise value
            return {"tokens_per_second": value, "marks": ["with flash"] if name == "b" else []}

        return call

    calls = {
        "a": rate("a", [2, 4, 9]),
        "b": rate("b", [1, 4, 3]),
        "c": rate("c", [5, program_runs.ProgramError("no memory")]),
    }
    rates = bench.turns("part", calls, (("a", "b"), ("a", "c")))
    assert "".join(order) == "abcabcab"
    assert rates == {"a": [2, 4, 9], "b": [1, 4, 3]}
    found = bench.result["part"]
    assert found["medians"] == {"a": 4, "b": 3} and len(found["samples"]["c"]) == 1
    assert found["ratios"] == {"a / b": {"median": 2.0, "rounds": [2.0, 1.0, 3.0]}}, "round by round"
    assert bench.result["not_run"] == {"part: c": "no memory"}
    assert ("part: b", "3 tokens/s; with flash") in bench.rows, "another kernel than the spec's is named"


def test_rounds_end_with_the_time(tmp_path):
    module = script()
    bench = bench_of(module, tmp_path, "--rounds", "2")

    def call():
        bench.end = time.monotonic() - 1
        return {"tokens_per_second": 3}

    assert bench.turns("part", {"a": call}, ()) == {"a": [3]}
    assert "1 of 2" in bench.result["not_run"]["part, rounds"]


KERNELS = [
    {"name": "attention cudnn forward", "microseconds": 300.0, "calls": 12, "group": "attention", "phase": "attention",
     "attention": "cudnn"},
    {"name": "attention flash forward", "microseconds": 900.0, "calls": 12, "group": "attention", "phase": "attention",
     "attention": "flash"},
    {"name": "head", "microseconds": 1000.0, "calls": 6.5, "group": "head", "phase": "products"},
    {"name": "c_fc", "microseconds": 500.0, "calls": 12, "group": "GEMMs", "phase": "products"},
    {"name": "bias of c_fc", "microseconds": 50.0, "calls": 12, "group": "bias gradients", "phase": "products",
     "difference": True},
    {"name": "copy", "microseconds": 70.0},
    {"name": "plain", "absence": "no device"},
]  # fmt: skip


def test_the_shares_of_kernels_are_times_and_calls_beside_a_step():
    table = step_shares.multiplied(KERNELS, 20.0, "cudnn")
    groups = {name: (round(g["milliseconds"], 6), round(g["share"], 6)) for name, g in table["groups"].items()}
    assert list(groups.items()) == [
        ("head", (6.5, 0.325)),
        ("GEMMs", (6.0, 0.3)),
        ("attention", (3.6, 0.18)),
        ("bias gradients", (0.6, 0.03)),
        ("remainder", (3.3, 0.165)),
    ]
    assert table["phases"] == pytest.approx({"attention": 3.6, "products": 13.1})
    of_flash = step_shares.multiplied(KERNELS, 20.0, "flash")["groups"]
    assert of_flash["attention"]["milliseconds"] == pytest.approx(10.8)
    assert of_flash["remainder"]["milliseconds"] == pytest.approx(-3.9), "a table that is wrong shows"


def test_other_calls_than_those_of_the_trace_are_an_error():
    phases = {"products": {"spans": 19.0}, "attention": {"spans": 12.0}}  # a difference is a part of another call
    step_shares.check_calls(KERNELS, "cudnn", phases)
    with pytest.raises(step_shares.UnequalCalls, match=r"products: 19 by device_rates, 20 in the trace$"):
        step_shares.check_calls(KERNELS, "cudnn", phases | {"products": {"spans": 20.0}})
    with pytest.raises(step_shares.UnequalCalls, match="layer_norm: 0 by device_rates, 1 in the trace"):
        step_shares.check_calls(KERNELS, "cudnn", phases | {"layer_norm": {"spans": 1.0}})
    with pytest.raises(step_shares.UnequalCalls, match="attention: 12 by device_rates, 0 in the trace"):
        step_shares.check_calls(KERNELS, "cudnn", {"products": {"spans": 19.0}})


def test_a_trace_gives_the_time_of_each_phase_on_the_device():
    def event(tid, cat, name, dur, pid=0, **args):
        return {"ph": "X", "pid": pid, "tid": 1000 * (pid + 1) + tid, "cat": cat, "name": name, "ts": 0, "dur": dur,
                "args": args}  # fmt: skip

    trace = {
        "traceEvents": [
            {"ph": "M", "pid": 0, "tid": 1002, "name": "thread_name", "args": {"name": "device"}},
            event(1, "step", "step 1", 9000),
            event(1, "step", "step 2", 9000),
            event(0, "trainer", "device", 8000),  # the host's
            event(2, "compute", "products", 3000),
            event(2, "compute", "products", 1000),
            event(2, "compute", "attention", 500),
            event(3, "communication", "all_reduce x", 200, **{"class": "tp_forward"}),
            event(2, "compute", "products", 7000, pid=1),
        ]
    }
    assert step_shares.measured(trace) == {
        "steps": 2,
        "phases": {
            "products": {"milliseconds": 2.0, "spans": 1.0},
            "attention": {"milliseconds": 0.25, "spans": 0.5},
        },
        "messages": {"tp_forward": {"milliseconds": 0.1, "spans": 0.5}},
    }


def test_the_rate_is_that_of_steps_between_warm_up_and_evaluation():
    seconds = [0, 9, 18, 20, 21, 22.5, 23.5, 99]  # when each step of 100 tokens had ended
    lines = [{"step": step, "tokens": 100 * step, "seconds": s} for step, s in enumerate(seconds)]
    found = spec_runs.rates(lines, is_traced=False)
    assert found == {"step_seconds": 1.0, "steps": 3, "tokens_per_second": 100.0}
    with pytest.raises(program_runs.ProgramError, match="has steps up to 3, want more than 4"):
        spec_runs.rates(lines[:4], is_traced=False)
    first, last = spec_runs.TRACED
    lines = [{"step": i, "tokens": i, "seconds": i * (2.0 if i > first else 1.0)} for i in range(last + 2)]
    found = spec_runs.rates(lines, is_traced=True)
    assert (found["step_seconds"], found["traced_step_seconds"]) == (1.0, 2.0)


def test_documents_end_in_the_tokens(tmp_path):
    spec_runs.write_tokens(tmp_path / "tokens.bin", count=10_000)
    data = (tmp_path / "tokens.bin").read_bytes()
    ends = [i for i in range(10_000) if int.from_bytes(data[2 * i : 2 * i + 2], "little") == spec_runs.END_OF_TEXT]
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    assert lengths and all(spec_runs.DOCUMENT_TOKENS[0] <= n <= spec_runs.DOCUMENT_TOKENS[1] for n in lengths)


SPECS = [(part, case) for part, cases in spec_runs.CASES.items() for case in cases]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return spec_runs.SpecRuns(BINARY, tmp_path_factory.mktemp("specs"), script().SMALL_SPEC)


@pytest.mark.parametrize("part, case", SPECS)
def test_the_command_accepts_the_spec_of_each_case(written, part, case):
    spec = written.write(part, case)

    def droptest(*words):
        return subprocess.run([BINARY, *words], cwd=written.folder, capture_output=True, text=True, timeout=600)

    done = droptest("validate", spec)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{spec}: ok, 1 run\n", ""), "without a warning"
    done = droptest("plan", spec, "--json")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    if run["memory"] is not None:  # of builds with CUDA
        assert run["memory"]["process"] < 75e9, "fits on a card of 80 GB"


def test_each_case_is_a_run_of_its_own(written):
    ids = {}
    for part, case in SPECS:
        done = subprocess.run([BINARY, "plan", written.write(part, case), "--json"], cwd=written.folder,
                              capture_output=True, text=True, timeout=600, check=True)  # fmt: skip
        ids.setdefault(json.loads(done.stdout)["runs"][0]["run_id"], []).append((part, case))
    same = [cases for cases in ids.values() if len(cases) > 1]
    assert same == [[("documents", "across documents"), ("sequence", "one rank")]]


HAS_FAKE = all(program.is_file() for program in FAKE_PROGRAMS.values())


@pytest.mark.skipif(not HAS_FAKE, reason=f"{BINARY.parents[1]} has no CUDA code or no benchmarks")
def test_every_part_runs_on_the_fake_device(tmp_path, monkeypatch, capsys):
    """With small models, and kernels that do nothing. The calls in a step by device_rates are those of a trace."""
    for name, program in FAKE_PROGRAMS.items():
        (tmp_path / "build" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "build" / name).symlink_to(program)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 'Fake GPU, 580.0, 81559 MiB, 9.0, 1980 MHz, 700 W'\n")
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("DROPTEST_FAKE_CUDA_IDLE", "1")
    module = script()
    module.SMALL = module.Shape(2, 64, 4, batch=64, length=64)
    module.XL = module.Shape(2, 128, 4, batch=2, length=64)
    module.SMALL_SPEC = {"layers": 2, "width": 64, "heads": 4, "context": 64, "vocabulary": 50257}
    module.NANO_STEPS = 3
    module.PEER = tmp_path / "no_pytorch.py"
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(sys, "argv", ["gpu_bench", "--without", "build,tests", "--build", str(tmp_path / "build"),
                                      "--out", str(out), "--rounds", "1", "--steps", "2"])  # fmt: skip
    assert module.main() == 1
    result = json.loads(out.read_text())
    assert list(result["not_run"]) == ["steps: pytorch"], "its script is not there, and all else ran"
    assert result["left_out"] == ["build", "tests"]

    kernels = {kernel["name"]: kernel for kernel in result["kernels"]["kernels"]}
    assert all(kernel["microseconds"] > 0 for kernel in kernels.values() if not kernel.get("difference"))
    groups = {kernel["group"] for kernel in kernels.values() if "group" in kernel}
    assert groups == result["shares"]["multiplied"]["groups"].keys() - {"remainder"}
    assert {forms["operation"] for forms in result["kernels"]["epilogues"]} == {
        "bias gradient of c_attn", "bias gradient of c_fc", "GELU of c_fc, forward", "GELU of c_fc, backward",
        "bias gradient of c_fc, in the GEMM before",
    }  # fmt: skip
    assert "bias gradient of c_fc, in the GEMM before" not in kernels, "no step does it"
    choices = result["choices"]["choices"]
    assert len(choices) > 10 and all(choice["proposals"] == 1 for choice in choices)
    assert all(choice["fastest_microseconds"] <= choice["first_microseconds"] for choice in choices)
    assert {"tp_forward", "tp_backward"} <= result["shares"]["four ranks"]["measured"]["messages"].keys()
    for part in ("tensor", "documents", "sequence"):
        assert result[part]["medians"].keys() == spec_runs.CASES[part].keys()
        assert all(rate > 0 for rate in result[part]["medians"].values())
        assert all(sample["marks"] == [] for samples in result[part]["samples"].values() for sample in samples)
    assert result["tensor"]["samples"]["one rank"][0]["attention"] == "cudnn"
    printed = capsys.readouterr().out
    for text in ("MEASURED in the traced step, products", "KERNEL TIME x CALLS, attention, backward",
                 "the step less all of these, remainder", "MEASURED on rank 0 of four, messages of tp_forward",
                 "bias gradient of c_fc: own kernels over epilogue", "sequence: ulysses, 1 % lost over ulysses",
                 "NOT RUN OR FAILED: steps: pytorch"):  # fmt: skip
        assert text in printed


class FakeRuns:
    """Runs of the part shares: traces of one step of 10 ms."""

    def run(self, part, case, timeout):
        if case == "four ranks":
            raise program_runs.ProgramError("no memory")
        events = [
            {"ph": "X", "pid": 0, "tid": 1001, "cat": "step", "name": "step 1", "ts": 0, "dur": 10_000},
            {"ph": "X", "pid": 0, "tid": 1002, "cat": "compute", "name": "products", "ts": 0, "dur": 4_000},
            {"ph": "X", "pid": 0, "tid": 1002, "cat": "compute", "name": "attention", "ts": 0, "dur": 3_500},
        ]
        return {"step_seconds": 0.01, "traced_step_seconds": 0.0125, "steps": 6, "attention": "cudnn",
                "trace": {"traceEvents": events}}  # fmt: skip


def test_a_choice_whose_first_algorithm_does_not_run_is_said(tmp_path, monkeypatch):
    module = script()
    bench = bench_of(module, tmp_path)
    choices = [
        {"row": "{90, a},", "proposals": 3, "fastest_microseconds": 40.0, "first_microseconds": 50.0},
        {"row": "{90, b},", "proposals": 2, "fastest_microseconds": 40.0},
        {"row": None, "proposals": 1, "fastest_microseconds": 9.0, "first_microseconds": 9.0},
    ]
    monkeypatch.setattr(module, "run", lambda words, timeout: {"choices": choices})
    bench.choices()
    assert bench.rows == [
        ("products whose fastest algorithm is not the first", "2 of 3"),
        ("choice {90, a},", "40 us over 50 us, 0.800"),
        ("choice {90, b},", "40 us; the first one does not run"),
    ]


def test_the_tables_of_shares_say_what_was_measured_and_what_multiplied(tmp_path):
    bench = bench_of(script(), tmp_path, runs=FakeRuns())
    kernels = [
        {"name": "c_fc", "microseconds": 3900.0, "calls": 1, "group": "GEMMs, forward", "phase": "products"},
        {"name": "cudnn", "microseconds": 3600.0, "calls": 0.5, "group": "attention, forward", "phase": "attention"},
    ]
    bench.result["kernels"] = {"kernels": kernels}
    bench.shares()
    assert bench.rows == [
        ("step of 124M, 64 x 1024, bf16, one rank", "10.00 ms, median of 6 steps, and 12.50 ms while traced; "
         "attention cudnn"),
        ("MEASURED in the traced step, products", "4.00 ms, 32.0 %"),
        ("MEASURED in the traced step, attention", "3.50 ms, 28.0 %"),
        ("MEASURED in the traced step, in no phase", "5.00 ms, 40.0 %: copies, launches, waits, kernels without a "
         "phase"),
        ("KERNEL TIME x CALLS, GEMMs, forward", "3.90 ms, 39.0 %"),
        ("KERNEL TIME x CALLS, attention, forward", "1.80 ms, 18.0 %"),
        ("the step less all of these, remainder", "4.30 ms, 43.0 %"),
        ("kernel time x calls over measured, products", "3.90 ms over 4.00 ms"),
        ("kernel time x calls over measured, attention", "1.80 ms over 3.50 ms"),
    ]  # fmt: skip
    assert bench.result["not_run"] == {"shares: four ranks": "no memory"}, "the other tables are there"
    kernels.append({"name": "c_proj", "microseconds": 1.0, "calls": 1, "group": "GEMMs", "phase": "products"})
    with pytest.raises(program_runs.ProgramError, match="not those of a step: calls in a step: products: 2 by"):
        bench.shares()
