# SPDX-License-Identifier: Apache-2.0
"""droptest search: the record, sharing of runs, Ctrl-C and going on."""

import json
import signal

from cli_harness import run, run_folders, start, summary_of, write_spec

SEARCH = {"low": "1%", "high": "90%", "tolerance_percent": 0.3, "seeds": 2, "max_runs": 26, "resolution": 0.3}


def record_of(folder):
    return json.loads((folder / "results/tiny/search.json").read_text())


def modified(folder):
    summaries = [f / "summary.json" for f in run_folders(folder)]
    return {s.parent.name: s.stat().st_mtime_ns for s in summaries if s.exists()}


def test_a_search_judges_rates_by_paired_runs_and_keeps_its_record(tmp_path, analysis):
    write_spec(tmp_path, search=SEARCH)
    result = run("search", "spec.json", "--jobs", "2", cwd=tmp_path)
    record = record_of(tmp_path)
    assert record["status"] in ("found", "low_fails", "high_passes", "budget_spent")
    assert record["runs"] <= 26
    listed = {r["run_id"] for r in record["twins"]} | {r["run_id"] for rate in record["rates"] for r in rate["runs"]}
    assert listed == {f.name for f in run_folders(tmp_path)} and len(listed) == record["runs"]
    assert record["rates"][0]["rate"] == 0.01 and record["rates"][-1]["rate"] == 0.9

    twins = {r["seed"]: r["loss"] for r in record["twins"]}
    for rate in record["rates"]:
        for one in rate["runs"]:
            summary = summary_of(tmp_path / "results/tiny" / one["run_id"])
            assert summary["seed"] == one["seed"] and summary["validation"]["final_loss"] == one["loss"]
            assert abs(one["difference_percent"] - 100 * (one["loss"] / twins[one["seed"]] - 1)) < 1e-9
            assert summary["loss"]["tp_forward"]["reduce"]["loss_rate"] == rate["rate"]
    for twin in record["twins"]:
        assert summary_of(tmp_path / "results/tiny" / twin["run_id"])["loss"] == {}
    assert f"{record['runs']} runs" in result.out
    # Rates that were trained ahead and decided nothing are in the table, too.
    rows = [line.split(" %")[0] for line in result.out.splitlines() if line[:1].isdigit()]
    assert rows == [f"{100 * rate['rate']:.4g}" for rate in record["rates"]]
    assert "rate 1 %:" in result.err

    # Again: nothing is run, and the record says the same.
    times = modified(tmp_path)
    # It needs no lock: no process can make this one, whatever its rights.
    (tmp_path / "results/tiny/search.json.lock").mkdir()
    written = (tmp_path / "results/tiny/search.json").stat().st_mtime_ns
    again = run("search", "spec.json", "--jobs", "2", cwd=tmp_path)
    assert modified(tmp_path) == times and record_of(tmp_path) == record and again.out == result.out
    assert (tmp_path / "results/tiny/search.json").stat().st_mtime_ns == written
    refused = run("search", "spec.json", "--set", "/search/seeds=3", cwd=tmp_path, expect=2)
    assert "search.json.lock" in refused.err
    (tmp_path / "results/tiny/search.json.lock").rmdir()

    # A report of it has the figure.
    report = analysis(["report", "results/tiny"], tmp_path)
    assert (tmp_path / "results/tiny/plots/threshold.svg").exists(), report


def test_runs_are_shared_with_sweeps(tmp_path):
    losses = [{"model": "none"}, {"model": "bernoulli", "loss_rate": "1%"}, {"model": "bernoulli", "loss_rate": 0.9}]
    write_spec(tmp_path, "sweep.json", sweep={"cross": {"/network/loss": losses}}, repeat={"seeds": 2})
    run("sweep", "sweep.json", cwd=tmp_path)
    times = modified(tmp_path)
    write_spec(tmp_path, search={**SEARCH, "max_runs": 6})
    run("search", "spec.json", cwd=tmp_path)
    assert modified(tmp_path) == times
    assert record_of(tmp_path)["runs"] == 6
    index = json.loads((tmp_path / "results/tiny/sweep.json").read_text())
    assert {r["run_id"] for r in index["runs"]} == set(times), "the sweep's own record stays as it is"


def test_ctrl_c_keeps_the_record_and_a_second_call_goes_on(tmp_path, holds):
    write_spec(tmp_path, search=SEARCH)
    holds.at("step-2")
    search = start("search", "spec.json", "--jobs", "1", cwd=tmp_path, environment=holds.environment)
    first = holds.reached("step-2", 2)
    holds.at("step-1")
    holds.release("step-2")  # the first run ends, the second one waits
    assert holds.reached("step-1", 2) != first
    search.send_signal(signal.SIGINT)
    _, err = search.communicate(timeout=600)
    assert search.returncode == 130, err
    assert "the same command goes on from here" in err
    assert record_of(tmp_path)["status"] == "stopped"
    kept = modified(tmp_path)
    assert kept
    run("search", "spec.json", cwd=tmp_path)
    assert record_of(tmp_path)["status"] != "stopped"
    assert kept.items() < modified(tmp_path).items(), "what was finished is not run again"


def test_what_has_no_meaning_is_refused_before_anything_runs(tmp_path):
    write_spec(tmp_path, search={**SEARCH, "high": 0.001})
    for command in ("search", "validate", "run"):
        refused = run(command, "spec.json", cwd=tmp_path, expect=2)
        assert "spec.json: /search/high: got 0.001, want more than low" in refused.err
    assert not (tmp_path / "results").exists()


def test_a_run_that_fails_ends_the_search_with_its_reason(tmp_path):
    (tmp_path / "short.txt").write_text("too short")
    write_spec(tmp_path, search=SEARCH, data={"text": "short.txt"})
    failed = run("search", "spec.json", cwd=tmp_path, expect=1)
    assert "a run failed" in failed.err and "short.txt: 9 tokens" in failed.err
    assert record_of(tmp_path)["status"] == "failed"
