# SPDX-License-Identifier: Apache-2.0
"""The decisions of the benchmark scripts: settings, environments, ratios, and refused arguments."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(FOLDER), *(str(FOLDER.parent / name) for name in ("analysis", "tests/analysis"))]

import machine  # noqa: E402
import program_runs  # noqa: E402
import synthetic  # noqa: E402
import torch_settings  # noqa: E402


def script(name, *arguments):
    return subprocess.run([sys.executable, str(FOLDER / name), *arguments], capture_output=True, text=True, timeout=600)


def test_tuning_keeps_what_is_faster_and_steps_over_what_cannot_run():
    def measure(setting):
        if "GLIBC_TUNABLES" in setting.variables:
            raise program_runs.ProgramError("no huge pages")
        keeps_memory = "MALLOC_MMAP_MAX_" in setting.variables
        return 100 + 50 * keeps_memory - 10 * ("OMP_WAIT_POLICY" in setting.variables) - 5 * (setting.threads == 1)

    best, trials = torch_settings.tune(measure, threads=2)
    assert best.variables == torch_settings.KEEP_MEMORY and best.threads == 2 and not best.options
    assert [t["error"] for t in trials if "error" in t] == ["no huge pages"]
    assert trials[0] == {"threads": 2, "variables": {}, "options": [], "tokens_per_second": 100}


def test_a_program_sees_none_of_the_users_settings_of_speed(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/old")
    found = program_runs.environment({"LD_LIBRARY_PATH": "/new", "MALLOC_MMAP_MAX_": "0"})
    assert "OMP_NUM_THREADS" not in found and "GLIBC_TUNABLES" not in found
    assert found["LD_LIBRARY_PATH"] == "/new:/old" and found["MALLOC_MMAP_MAX_"] == "0" and "PATH" in found


def test_ratios_are_taken_round_by_round():
    # The quotient of the medians would be 4 / 3.
    assert program_runs.ratios([2, 4, 9], [1, 4, 3]) == {"median": 2.0, "rounds": [2.0, 1.0, 3.0]}


def test_a_sample_says_what_the_machine_did_meanwhile():
    sample = program_runs.run([sys.executable, "-c", "print('{\"a\": 1}')"])
    assert sample["a"] == 1
    assert set(sample["machine_meanwhile"]) == {"load_average_before", "other_cpus", "stolen_cpus", "seconds"}


@pytest.mark.parametrize(
    "code, reason",
    [
        ("raise SystemExit('no memory')", "exit code 1: no memory"),
        ("print('hello')", "did not print JSON"),
        ("import time; time.sleep(60)", "still running after 0.5 s"),
    ],
)
def test_programs_that_fail_are_errors_that_say_why(code, reason):
    with pytest.raises(program_runs.ProgramError, match=reason):
        program_runs.run([sys.executable, "-c", code], timeout=0.5 if "sleep" in code else 60)


def test_the_build_is_read_from_its_folder(tmp_path):
    (tmp_path / "CMakeCache.txt").write_text("CMAKE_BUILD_TYPE:STRING=Release\nCMAKE_CXX_FLAGS_RELEASE:STRING=-O2\n")
    folder = tmp_path / "CMakeFiles" / "3.25.1"
    folder.mkdir(parents=True)
    (folder / "CMakeCXXCompiler.cmake").write_text(
        'set(CMAKE_CXX_COMPILER_ID "GNU")\nset(CMAKE_CXX_COMPILER_VERSION "12.2.0")\n'
    )
    assert machine.build(tmp_path) == {"compiler": "GNU 12.2.0", "type": "Release", "flags": "-O2"}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ("compare_peers.py", "--build", "/nowhere"),
            "/nowhere/benchmarks/train_step: no such program; build it: cmake",
        ),
        (("compare_peers.py", "--cases", "small,nano"), "--cases: got small, want some of small_b4_t64"),
        (("compare_peers.py", "--rounds", "0"), "--rounds: got 0, want at least 1"),
        (("scaling.py", "--build", "/nowhere"), "/nowhere/benchmarks/train_step: no such program"),
        (("scaling.py", "--widths", "100"), "--widths: got 100, want multiples of 64"),
        (("scaling.py", "--ranks", "3"), "--ranks: got 3, want some of 1, 2, 4, 8"),
        (("scaling.py", "--lengths", "x"), "got x, want integers of at least 1"),
        (("memory_strategies.py", "--binary", "x", "--largest", "20"), "got 20, want a number with MiB or GiB"),
        (("sweep_throughput.py", "--text", "/nowhere"), "/nowhere: no such file; ./scripts/prepare-corpus makes it"),
        (("load_results.py", "--runs", "150,170"), "--runs: got 150,170, want multiples of 50 from 100 on"),
        (("load_results.py", "--runs", "100", "--sweep", "/nowhere"), "/nowhere: got runs of no loss, want results of"),
    ],
)
def test_bad_calls_get_a_clear_error(arguments, message):
    done = script(*arguments)
    assert done.returncode in (1, 2) and message in done.stderr and "Traceback" not in done.stderr


def test_the_analysis_is_measured_over_copies_of_a_small_sweep(tmp_path):
    losses = [synthetic.NONE, synthetic.bernoulli(0.1), synthetic.gilbert_elliott(0.1, 4)]
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": losses}, seeds=1)
    done = script("load_results.py", "--sweep", folder, "--runs", "100", "--rounds", "1", "--keep", tmp_path / "kept")
    assert done.returncode == 0, done.stderr
    (sample,) = json.loads(done.stdout)["runs"]["100"]["samples"]
    assert sample["loaded_runs"] == 100 and sample["load_peak_mebibytes"] > 0
    assert all(sample[f"{what}_{unit}"] > 0 for what in ("load", "tables") for unit in ("seconds", "cpu_seconds"))
    copied = [json.loads(path.read_text()) for path in (tmp_path / "kept" / "100").glob("*/summary.json")]
    rates = [summary["loss"]["tp_forward"]["reduce"]["loss_rate"] for summary in copied if summary["loss"]]
    assert (len(copied), rates) == (100, [0.25] * 50), "two losses: none, and Bernoulli at a quarter"
    assert len({summary["validation"]["final_loss"] for summary in copied}) > 10
