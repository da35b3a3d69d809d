# SPDX-License-Identifier: Apache-2.0
"""droptest fates, collective, list, info, report, and rules of all commands."""

import json
import math
import re
import subprocess

import pytest
from cli_harness import BINARY, run, run_folders, summary_of, write_spec

COMMANDS = [
    "run",
    "sweep",
    "validate",
    "report",
    "export",
    "eval",
    "list",
    "info",
    "fates",
    "collective",
    "drift",
    "doctor",
    "search",
    "plan",
]


def fates(folder, loss, *arguments, expect=0, seed=7, dst=1, first=0, count=10000):
    return run(
        "fates", "--loss", json.dumps(loss), "--seed", seed, "--class", "tp_forward", "--src", 0, "--dst", dst,
        "--first", first, "--count", count, *arguments, cwd=folder, expect=expect,
    )  # fmt: skip


def bits_of(out):
    return "".join(line for line in out.splitlines() if not line.startswith("#"))


def test_help_and_version(tmp_path):
    top = run("--help", cwd=tmp_path).out
    assert "Examples:" in top and "worker" not in top and "doctor-rank" not in top
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", top, re.MULTILINE)
        text = run(command, "--help", cwd=tmp_path).out
        assert "Example" in text and f"droptest {command}" in text
    assert run("--version", cwd=tmp_path).out.startswith("droptest 0.")


@pytest.mark.parametrize("arguments", [[], ["rnu"], ["run"], ["run", "--nonsense", "x"], ["fates", "--count", "x"]])
def test_a_wrong_command_line_is_one_clear_error(tmp_path, arguments):
    result = run(*arguments, cwd=tmp_path, expect=2)
    assert result.err.startswith("droptest: error: ") and result.out == ""


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["schema", "spec"]])
def test_output_that_cannot_be_written_is_an_error(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run([BINARY, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "standard output cannot be written" in done.stderr
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", BINARY, *words], stderr=subprocess.PIPE, check=False)
    assert closed.returncode == 0 and closed.stderr == b"", "nobody asked for the output"


@pytest.mark.parametrize(
    ("arguments", "error", "see"),
    [
        (
            ["swep", "spec.json"],
            'unknown command "swep"; did you mean "sweep"? known commands: run, resume, sweep, ',
            "",
        ),
        (["frobnicate"], 'unknown command "frobnicate"; known commands: run, resume, sweep, ', ""),
        (["--versio"], 'droptest: unknown option "--versio"; did you mean "--version"? known options: --help', ""),
        (["sweep", "--job=2", "spec.json"], 'sweep: unknown option "--job"; did you mean "--jobs"? known', "sweep "),
        (["sweep", "s.json", "--pin", "core"], '--pin: got "core"; did you mean "cores"? known values: ', "sweep "),
        (["run", "s.json", "--if-busy", "skp"], '--if-busy: got "skp"; did you mean "skip"? known values', "run "),
        (["schema", "sumary"], 'NAME: got "sumary"; did you mean "summary"? known values: spec, ', "schema "),
        (["run", "s.json", "more"], 'run: got "more" beyond its last argument', "run "),
        (
            ["generate", "--prompt-tokens", "1", "2", "3"],
            'generate: got "2" beyond its last argument; the values of --prompt-tokens have commas between them',
            "generate ",
        ),
        (["run"], "SPEC is required", "run "),
    ],
)
def test_a_misspelt_word_is_named_with_the_nearest_that_is_known(tmp_path, arguments, error, see):
    said = run(*arguments, cwd=tmp_path, expect=2).err.splitlines()
    assert said[0].startswith("droptest: error: " + error) and len(said) == 2
    assert said[1] == f"droptest: see droptest {see}--help"
    assert "worker" not in said[0], "commands that --help does not show are no suggestions"


def test_fates_agree_in_every_format(tmp_path):
    loss = {"model": "gilbert_elliott", "loss_rate": "5%", "mean_burst_packets": 8}
    bits = bits_of(fates(tmp_path, loss, "--format", "bits").out)
    assert len(bits) == 10000
    report = json.loads(fates(tmp_path, loss, "--format", "json").out)
    assert report["packets"] == 10000 and report["lost"] == bits.count("1")
    assert report["realised_rate"] == pytest.approx(bits.count("1") / 10000)
    bursts = [b for b in bits.split("0") if b]
    assert report["mean_burst_packets"] == pytest.approx(sum(map(len, bursts)) / len(bursts))
    assert report["loss_rate"] == pytest.approx(0.05)
    assert abs(report["z"]) < 4

    runs = [list(map(int, line.split())) for line in fates(tmp_path, loss).out.splitlines() if line[0].isdigit()]
    rebuilt = ["0"] * 10000
    for first, length in runs:
        rebuilt[first : first + length] = ["1"] * length
    assert "".join(rebuilt) == bits


def test_fates_are_random_access_and_monotone(tmp_path):
    def bits(rate, *arguments, count=640, **link):
        loss = {"model": "bernoulli", "loss_rate": rate}
        return bits_of(fates(tmp_path, loss, "--format", "bits", *arguments, count=count, **link).out)

    whole = bits(0.2)
    assert bits(0.2, first=100, count=540) == whole[100:]
    assert all(low <= high for low, high in zip(bits(0.05), whole, strict=True))
    assert bits(0.2, "--half", "gather") != whole
    assert bits(0.2, seed=8) != whole
    assert bits(0.2, dst=2) != whole
    assert set(bits(0)) == {"0"} and set(bits(1)) == {"1"}


@pytest.mark.parametrize(
    "loss",
    [
        {"model": "four_state", "p13": "1%", "p31": 0.3, "p32": 0.2, "p23": 0.6, "p14": 0.002},
        {
            "model": "timed_gilbert_elliott",
            "mean_good_microseconds": 100,
            "mean_bad_microseconds": 10,
            "packet_microseconds": 0.5,
        },
        {"model": "pattern", "every": 9, "offset": 2},
        {"model": "pattern", "lost_packets": 4, "delivered_packets": 40},
        {"model": "trace", "file": "trace.txt"},
        {"model": "trace", "file": "trace.txt", "start": "random"},
    ],
)
def test_every_process_is_random_access_and_says_its_deviation(tmp_path, loss):
    (tmp_path / "trace.txt").write_text("0000100110\n# comment\n0001\n")
    whole = bits_of(fates(tmp_path, loss, "--format", "bits").out)
    piece = bits_of(fates(tmp_path, loss, "--format", "bits", first=777, count=500).out)
    assert piece == whole[777:1277]
    report = json.loads(fates(tmp_path, loss, "--format", "json").out)
    assert report["lost"] == whole.count("1") > 0
    assert abs(report["z"]) < 4


def test_fates_of_a_step(tmp_path):
    windows = [{"from_step": 2, "to_step": 4}]
    loss = {"model": "outage", "windows": windows, "otherwise": {"model": "pattern", "every": 2}}
    for step, bits in [(1, "1010"), (2, "1111"), (3, "1111"), (4, "1010")]:
        assert bits_of(fates(tmp_path, loss, "--format", "bits", "--step", str(step), count=4).out) == bits


def test_links_of_a_collective(tmp_path):
    links = [{"sources": [1], "destinations": [0], "loss": {"model": "bernoulli", "loss_rate": 1}}]
    arguments = ["--ranks", "4", "--trials", "3", "--elements", "4096", "--links"]
    report = json.loads(run("collective", *arguments, json.dumps(links), cwd=tmp_path).out)
    # Of 4 x 4 pairs of a result's part and a contribution one is missing.
    assert report["survival"]["measured"] == pytest.approx(15 / 16)
    assert report["survival_gather"]["measured"] == pytest.approx(15 / 16)
    assert report["survival"]["expected"] is None
    links[0]["sources"] = [4]
    wrong = run("collective", *arguments, json.dumps(links), cwd=tmp_path, expect=2)
    assert "/network/links/0/sources/0: got 4, want ranks from 0 to 3" in wrong.err


@pytest.mark.parametrize("loss", [{"model": "bernoulli", "loss_rate": 2}, {"model": "nope"}, {"loss_rate": 0.1}, 3])
def test_a_wrong_loss_process_is_refused(tmp_path, loss):
    assert "--loss" in fates(tmp_path, loss, expect=2).err
    result = run("collective", "--loss", json.dumps(loss), cwd=tmp_path, expect=2)
    assert "--loss" in result.err


def test_loss_that_is_not_json_is_refused(tmp_path):
    result = run("fates", "--loss", "{", "--class", "tp_forward", "--count", "1", cwd=tmp_path, expect=2)
    assert "--loss" in result.err


def test_collective_measures_what_theory_expects(tmp_path):
    result = run(
        "collective", "--path", "direct", "--ranks", "4", "--elements", "4096", "--payload-bytes", "64", "--loss",
        '{"model": "bernoulli", "loss_rate": 0.1}', "--fill", "zero", "--inputs", "independent", "--trials", "40",
        cwd=tmp_path,
    )  # fmt: skip
    report = json.loads(result.out)
    for name in ("nmse", "survival", "survival_gather", "survival_end_to_end"):
        estimate = report[name]
        assert set(estimate) == {"measured", "standard_error", "expected"}
        assert abs(estimate["measured"] - estimate["expected"]) < 4 * estimate["standard_error"], (name, estimate)
    # Of 4 contributions the own one always arrives, and likewise for the sums that come back.
    assert report["survival"]["expected"] == pytest.approx(1 - 0.1 * 3 / 4)
    assert report["survival_end_to_end"]["expected"] == pytest.approx((1 - 0.1 * 3 / 4) ** 2)
    assert abs(report["loss"]["z"]) < 4


def test_collective_recovers_as_theory_expects(tmp_path):
    arguments = [
        "collective", "--ranks", "4", "--elements", "16384", "--payload-bytes", "64", "--trials", "30", "--loss",
        '{"model": "bernoulli", "loss_rate": 0.1}', "--recovery",
    ]  # fmt: skip
    recovery = {"parity": {"data": 4, "parity": 1}, "interleave": 4}
    report = json.loads(run(*arguments, json.dumps(recovery), cwd=tmp_path).out)
    # 0.1 (1 - 0.9^4) of the packets stay missing, on 3 of 4 links.
    assert report["survival"]["expected"] == pytest.approx(1 - 0.03439 * 3 / 4)
    for name in ("nmse", "survival", "survival_gather"):
        estimate = report[name]
        assert abs(estimate["measured"] - estimate["expected"]) < 4 * estimate["standard_error"], (name, estimate)
    assert 0 < report["loss"]["missing"] < report["loss"]["repaired"] < report["loss"]["lost"]
    assert report["network"]["recovery"] == {"interleave": 4}

    recovery = {"retransmit": {"protocol": "selective_repeat"}}
    report = json.loads(run(*arguments, json.dumps(recovery), cwd=tmp_path).out)
    assert report["nmse"]["measured"] < 1e-12 and report["loss"]["missing"] == 0
    assert report["loss"]["resent"] > report["loss"]["lost"] == report["loss"]["repaired"]

    error = run(*arguments, '{"parity": {"data": 8, "partiy": 2}}', cwd=tmp_path, expect=2).err
    assert "--recovery" in error and "/network/recovery/parity/partiy" in error


def test_collective_halves_have_their_own_loss(tmp_path):
    report = json.loads(
        run(
            "collective",
            "--ranks",
            "3",
            "--elements",
            "600",
            "--payload-bytes",
            "64",
            "--trials",
            "3",
            "--reduce-loss",
            '{"model": "bernoulli", "loss_rate": 1}',
            "--reduce-fill",
            "zero",
            cwd=tmp_path,
        ).out
    )
    # All foreign contributions are lost; the own one of three always counts.
    assert report["survival"]["measured"] == pytest.approx(1 / 3)
    assert report["survival_gather"]["measured"] == 1


def test_collective_measures_paths_of_hops(tmp_path):
    for path in ("ring", "halving_doubling", "tree", "hierarchical"):
        groups = ["--group-ranks", "3"] if path == "hierarchical" else []
        options = ["collective", "--path", path, *groups, "--ranks", "6", "--elements", "4096", "--payload-bytes", "64"]
        options += ["--loss", '{"model": "bernoulli", "loss_rate": 0.1}', "--trials", "40"]
        report = json.loads(run(*options, cwd=tmp_path).out)
        for name in ("nmse", "survival", "survival_gather"):
            estimate = report[name]
            assert abs(estimate["measured"] - estimate["expected"]) < 4 * estimate["standard_error"], (path, name)
        # Without tensors: the same fates, so the same losses and survival.
        dry = json.loads(run(*options, "--dry", cwd=tmp_path).out)
        assert dry["nmse"]["measured"] is None and dry["nmse"]["expected"] == report["nmse"]["expected"]
        for name in ("survival", "survival_gather", "survival_end_to_end", "loss"):
            assert dry[name] == report[name], (path, name)


def test_collective_without_tensors_has_the_clocks_of_the_run(tmp_path):
    link = {"latency_microseconds": 5, "bandwidth_gbit_per_second": 10}
    model = {"link": link, "compute_milliseconds": 0.1, "stragglers": {"transfer_p99_over_p50": 2}}
    options = ["collective", "--path", "tree", "--ranks", "6", "--elements", "4096", "--payload-bytes", "64"]
    options += ["--loss", '{"model": "bernoulli", "loss_rate": 0.1}', "--trials", "3", "--time", json.dumps(model)]
    report = json.loads(run(*options, cwd=tmp_path).out)
    dry = json.loads(run(*options, "--dry", cwd=tmp_path).out)
    assert dry["seconds"] == report["seconds"] and dry["time"] == report["time"]
    assert dry["seconds"]["measured"] > 1e-4


def test_collective_refuses_threads_for_thousands_of_ranks(tmp_path):
    assert "--dry" in run("collective", "--ranks", "1025", cwd=tmp_path, expect=2).err
    tree = ["--path", "tree", "--trials", "1", "--loss", '{"model": "bernoulli", "loss_rate": 0.001}']
    report = json.loads(run("collective", "--ranks", "4096", "--dry", *tree, cwd=tmp_path).out)
    assert report["loss"]["packets"] > 4096


def test_collective_without_loss_is_exact(tmp_path):
    report = json.loads(run("collective", "--ranks", "2", "--elements", "100", "--trials", "2", cwd=tmp_path).out)
    # The result is a float, the exact sum is not.
    assert report["nmse"]["measured"] < 1e-12 and report["survival"]["measured"] == 1


def test_list_names_what_specs_can_name(tmp_path):
    listed = json.loads(run("list", "--json", cwd=tmp_path).out)
    names = {kind: [e["name"] for e in entries] for kind, entries in listed.items()}
    assert names["models"] == ["nano", "micro", "small", "medium", "large", "xl"]
    assert {"none", "bernoulli", "gilbert_elliott"} <= set(names["loss_processes"])
    assert {"contribution", "direct"} <= set(names["paths"])
    fills = ["zero", "count_rescale", "inverse_probability", "stale", "own", "own_scaled", "skip", "absent"]
    assert names["fills"] == fills
    recoveries = ["parity", "retransmit", "interleave", "hadamard", "error_feedback", "protect"]
    assert names["recoveries"] == recoveries
    assert names["backends"] == ["local", "gloo", "nccl", "udp"]
    small = next(m for m in listed["models"] if m["name"] == "small")
    assert small["parameters"] == 124439808
    text = run("list", cwd=tmp_path).out
    for entries in names.values():
        assert all(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in entries)


def test_info_names_versions_and_what_was_built(tmp_path):
    info = json.loads(run("info", "--json", cwd=tmp_path).out)
    assert {"version", "commit", "compiler", "libraries", "backends", "cuda"} <= set(info)
    assert info["backends"]["local"] is True and info["backends"]["udp"] is False
    text = run("info", cwd=tmp_path).out
    assert info["version"] in text


def test_info_shows_the_devices_or_why_there_are_none(tmp_path):
    cuda = json.loads(run("info", "--json", cwd=tmp_path).out)["cuda"]
    text = run("info", cwd=tmp_path).out
    # Exactly one of the two: devices, or a reason.
    assert bool(cuda["devices"]) == (cuda["absence"] is None)
    if not cuda["built"]:
        assert "not built" in text and "DROPTEST_WITH_CUDA" in cuda["absence"]
        assert cuda["runtime"] is None and cuda["libraries"] == {}
    else:
        assert cuda["architectures"] in text and f"runtime {cuda['runtime']}" in text
        if cuda["driver"] is None:
            assert "no NVIDIA driver" in cuda["absence"]
        cudnn = cuda["attention_by_cudnn"]
        assert (cudnn["library"] is None) == (cudnn["version"] is None)
        shown = f"cuDNN {cudnn['version']} ({cudnn['library']})" if cudnn["absence"] is None else cudnn["absence"]
        assert shown in text
        kernels = json.loads(run("list", "kernels", "--json", cwd=tmp_path).out)["kernels"]
        [of_cudnn] = [kernel for kernel in kernels if kernel["name"] == "cudnn"]
        assert of_cudnn.get("absence") == cudnn["absence"]
    if cuda["absence"]:
        assert f"devices    none: {cuda['absence']}" in text
    for device in cuda["devices"]:
        if device["trouble"] is None:
            assert 0 <= device["free_bytes"] <= device["total_bytes"] and device["name"] in text


def test_report_says_what_it_cannot_do(tmp_path):
    assert "no such folder" in run("report", "nowhere", cwd=tmp_path, expect=2).err
    (tmp_path / "results").mkdir()
    result = run("report", "results", cwd=tmp_path, expect=2, environment={"DROPTEST_HOME": str(tmp_path)})
    assert "DROPTEST_HOME" in result.err
    result = run("report", "results", cwd=tmp_path, expect=2, environment={"DROPTEST_PYTHON": "/no/python"})
    assert "/no/python" in result.err


def test_report_writes_a_page(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    write_spec(tmp_path, sweep={"cross": {"/network/loss/loss_rate": [0, 0.2]}}, repeat={"seeds": 2})
    run("sweep", "spec.json", cwd=tmp_path)
    folders = run_folders(tmp_path)
    run("report", "results/tiny", "--effect", "0.07", "--equivalent", "0.5", cwd=tmp_path)
    page = (tmp_path / "results/tiny/report.html").read_text()
    losses = {0.0: [], 0.2: []}
    for summary in map(summary_of, folders):
        losses[summary["loss"]["tp_forward"]["reduce"]["loss_rate"]].append(summary["validation"]["final_loss"])
    lossless, lossy = (sum(values) / len(values) for values in losses.values())
    table = page.split('<table data-name="summary">')[1].split("</table>")[0]
    (row,) = re.findall(r'<tr><td class="text">Bernoulli</td>.*?</tr>', table)
    cells = [cell.split(" ± ")[0] for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
    assert {"20 %", f"{lossy:.4f}", f"{lossy - lossless:+.4f}"} <= set(cells)
    assert ">to see 0.07</th>" in page and ">within 0.5?</th>" in page
    for folder in folders:
        assert f'href="{folder.name}/metrics.jsonl"' in page
    assert page.count("data:image/svg+xml;base64,") == len(list((tmp_path / "results/tiny/plots").glob("*.svg"))) > 3


def test_numbers_that_are_not_finite_are_null(tmp_path):
    report = json.loads(fates(tmp_path, {"model": "bernoulli", "loss_rate": 1}, "--format", "json", count=10).out)
    assert report["configured_mean_burst_packets"] is None
    assert report["lost"] == 10 and math.isfinite(report["z"])


def test_drift_stands_beside_its_closed_form(tmp_path):
    result = run(
        "drift", "--ranks", "4", "--elements", "512", "--payload-bytes", "64", "--trials", "8", "--steps", "30",
        "--loss", '{"model": "bernoulli", "loss_rate": "20%"}', cwd=tmp_path,
    )  # fmt: skip
    drift = json.loads(result.out)
    assert drift["network"]["reduce"]["fill"] == "inverse_probability" and drift["network"]["gather"]["fill"] == "stale"
    between = drift["drift_between_replicas"]
    assert between["expected"] == pytest.approx(2 * 0.2 / (1 - 0.2**2))
    assert abs(between["measured"] - between["expected"]) < 5 * between["standard_error"]
    assert drift["squared_step"]["expected"] == pytest.approx((1 + 3 / 0.8) / 4)
