# SPDX-License-Identifier: Apache-2.0
"""What the report says of real runs: which are lossless, what their twins are, how often they were trained."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from cli_harness import metrics_of, run, run_folders, summary_of, write_spec

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "analysis"))

import droptest
from droptest import class_links, summary

MODEL = {"layers": 2, "width": 8, "heads": 2, "context": 16, "vocabulary": 256}
TRAINING = {"steps": 4, "batch_sequences": 1, "learning_rate": 0.01, "warmup_steps": 0}
NONE = {"model": "none"}
LOSS = {"model": "bernoulli", "loss_rate": 0.1}
CLOCK = {"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 10}, "compute_milliseconds": 1}


def write(folder, file="spec.json", network=None, **changes):
    parts = {"model": MODEL, "training": TRAINING, "record": {"weights": "none"}, "parallel": {"tensor": 2}}
    parts["validation"] = {"every_steps": 4, "tokens": 64}
    write_spec(folder, file, network={"payload_bytes": 64} | (network or {}), **parts | changes)


def sweep(folder, cross, *options, **changes):
    write(folder, sweep={"cross": cross}, **changes)
    return run("sweep", "spec.json", *options, cwd=folder)


def groups(folder):
    return summary.groups(droptest.load(folder / "results/tiny"))


def counts_of(folder):
    """(lost, missing in the end) of each run, by its own statistics."""
    counts = {}
    for path in run_folders(folder):
        statistics = json.loads((path / "loss_statistics.json").read_text())
        halves = [half for c in statistics["classes"].values() for half in c["halves"].values()]
        missing = sum(half.get("recovery", {}).get("residual", half["lost"]) for half in halves)
        counts[path.name] = (sum(half["lost"] for half in halves), missing)
    return counts


@pytest.mark.parametrize(
    ("parallel", "source"),
    [({"data": 8}, 7), ({"pipeline": 2}, 0), ({"pipeline": 2}, 1), ({"tensor": 2}, 1), ({"sequence": 2}, 1)],
)
def test_a_run_with_one_bad_link_is_not_averaged_with_clean_ones(tmp_path, parallel, source):
    sweep(tmp_path, {"/network/links": [[], [{"sources": [source], "loss": LOSS}]]}, "--quiet", parallel=parallel)
    lossless, lossy = groups(tmp_path)
    assert (lossless.series, lossless.note) == ("lossless", "is the lossless twin; one seed: no interval")
    assert not lossy.lossless and "lossless" not in lossy.series + lossy.loss_model
    assert lossy.difference.n == 1
    counts = counts_of(tmp_path)
    assert {run_id for run_id, (_, missing) in counts.items() if missing} == set(lossy.run_ids)


def test_a_run_is_lossless_reliable_or_neither_as_its_own_statistics_say(tmp_path):
    recoveries = [{}, {"retransmit": {"protocol": "selective_repeat"}}, {"parity": {"data": 2, "parity": 1}}]
    sweep(tmp_path, {"/network/recovery": recoveries, "/network/loss": [NONE, LOSS]}, "--quiet")
    counts = counts_of(tmp_path)
    records = droptest.load(tmp_path / "results/tiny")
    for row in records.runs.itertuples():
        lost, missing = counts[row.run_id]
        assert row.lossless == row.without_loss == (lost == 0)
        assert row.reliable == (lost > 0 and missing == 0)
    reliable = [group for group in summary.groups(records) if group.reliable]
    assert len(reliable) == 1 and "reliable: all lost packets were repaired" in reliable[0].note
    assert reliable[0].difference.mean == 0, "repaired packets leave no trace in the results"


def test_compressed_runs_are_not_lossless_and_their_twins_compress_too(tmp_path):
    kinds = [{"kind": "none"}, {"kind": "int4", "block": 16}]
    parallel = {"data": 2}
    sweep(tmp_path, {"/network/compression": kinds, "/network/loss": [NONE, LOSS]}, "--quiet", parallel=parallel)
    found = {(g.lossless, g.without_loss, "int4" in g.series): g for g in groups(tmp_path)}
    exact, compressed = found[True, True, False], found[False, True, True]
    assert "lossless" not in compressed.series + compressed.loss_model + compressed.note
    for twin, kind in ((exact, False), (compressed, True)):
        lossy = found[False, False, kind]
        assert lossy.twin_ids == twin.run_ids
        assert lossy.difference.mean == pytest.approx(lossy.final.mean - twin.final.mean)


def ring_of(ranks, ulysses=1, **more):
    return {"sequence": ranks, "sequence_kind": {"ring": ranks // ulysses, "ulysses": ulysses}, **more}


CHUNKS = {"chunks": 2, "schedule": "interleaved"}
LAYOUTS = [
    {"tensor": 4}, {"tensor": 2, "tensor_sequence": True}, {"data": 4}, {"data": 4, "zero": 2}, {"data": 4, "zero": 3},
    {"pipeline": 4}, {"pipeline": 4} | CHUNKS, {"pipeline": 2} | CHUNKS, {"pipeline": 2, "tensor": 2, "data": 2},
    ring_of(4), ring_of(4, ulysses=4), ring_of(4, ulysses=2), ring_of(3, data=2),
    ring_of(4, ulysses=2, data=2, order=["data", "sequence", "tensor", "pipeline"]),
]  # fmt: skip
DILATED = {"kind": "dilated", "branches": [{"segment": 4, "dilation": 1}, {"segment": 16, "dilation": 2}]}


def links_with_packets(folder):
    """(class, half) -> the links on which the run has sent packets, and the resolved spec."""
    (path,) = run_folders(folder)
    found = {}
    for link in json.loads((path / "loss_statistics.json").read_text())["links"]:
        if link["packets"]:
            found.setdefault((link["class"], link["half"]), set()).add((link["source"], link["destination"]))
    return found, json.loads((path / "spec.json").read_text())


@pytest.mark.parametrize(
    ("path", "changes"),
    [(path, {"parallel": layout}) for path in ("direct", "ring", "contribution") for layout in LAYOUTS]
    + [("direct", {"parallel": ring_of(4), "model": MODEL | {"attention": DILATED}}),
       ("contribution", {"parallel": {"data": 4}, "outer": {"every_steps": 2}})],
    ids=str,
)  # fmt: skip
def test_the_report_knows_the_links_on_which_a_class_sends(tmp_path, path, changes):
    size = {"model": MODEL | {"layers": 8, "heads": 4}, "training": TRAINING | {"steps": 2, "batch_sequences": 4}}
    record = {"links": "include", "weights": "none"}
    write(tmp_path, network={"path": path, "loss": LOSS}, record=record, **size | changes)
    run("run", "spec.json", "--quiet", cwd=tmp_path)
    found, spec = links_with_packets(tmp_path)
    assert found
    assert {key: set(class_links.links_of(*key, spec)) for key in found} == found


def test_a_twin_is_found_wherever_its_corpus_and_checkpoints_are(tmp_path):
    write(tmp_path, network={"loss": NONE}, validation={"every_steps": 4, "tokens": 64, "network": "lossy"})
    run("run", "spec.json", "--quiet", cwd=tmp_path)
    (tmp_path / "moved").mkdir()
    shutil.copy(tmp_path / "corpus.txt", tmp_path / "moved/corpus.txt")
    write(
        tmp_path, network={"loss": LOSS}, data={"text": "moved/corpus.txt"}, checkpoint={"every_steps": 2}, time=CLOCK
    )
    run("run", "spec.json", "--quiet", cwd=tmp_path)
    lossless, lossy = groups(tmp_path)
    assert lossy.twin_ids == lossless.run_ids
    omits = [summary_of(path)["twin_omits"] for path in run_folders(tmp_path)]
    assert all("/data/text" in one and "/network" in one for one in omits)
    assert sum("/checkpoint" in one for one in omits) == 1


def test_a_lossless_point_is_trained_once_for_all_seeds_of_the_network(tmp_path):
    out = sweep(tmp_path, {"/network/loss": [NONE, LOSS]}, repeat={"weights": 2, "network": 3}).out
    assert "12 runs in results/tiny" in out and out.count(" (the run of seed 1)") == 2
    listed = json.loads((tmp_path / "results/tiny/sweep.json").read_text())["runs"]
    lossless = [one for one in listed if one["point"]["/network/loss"] == NONE]
    assert [one["seeds"]["network"] for one in lossless] == [1, 2, 3, 1, 2, 3]
    assert len({one["run_id"] for one in lossless}) == 2 and len(run_folders(tmp_path)) == 2 + 6
    clean, lossy = groups(tmp_path)
    assert len(clean.run_ids) == 2 and "one run for several points: network seeds 1, 2 or 3" in clean.note
    assert len(lossy.run_ids) == 6 and lossy.difference.n == 6
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("results/tiny/*/summary.json")}
    run("sweep", "spec.json", "--quiet", cwd=tmp_path)
    assert written == {path: path.stat().st_mtime_ns for path in written}


def test_with_a_clock_each_seed_of_the_network_has_stragglers_of_its_own(tmp_path):
    straggler = CLOCK | {"stragglers": {"compute_p99_over_p50": 3}}
    sweep(tmp_path, {"/network/loss": [NONE]}, "--quiet", repeat={"network": 2}, time=straggler)
    times = {summary_of(path)["time"]["virtual_seconds"] for path in run_folders(tmp_path)}
    assert len(times) == 2


def test_points_are_told_apart_in_the_order_of_the_spec(tmp_path):
    cross = {"/network/reduce/loss": [NONE], "/network/gather/loss": [NONE, LOSS]}
    lossy = "reduce/loss: none, gather/loss: bernoulli loss_rate=0.1"
    write(tmp_path, sweep={"cross": cross})
    planned = run("plan", "spec.json", cwd=tmp_path).out
    assert lossy in planned and planned.index("differs: /network/reduce") < planned.index("differs: /network/gather")
    assert lossy in run("sweep", "spec.json", "--tensorboard", cwd=tmp_path).out
    assert lossy in run("watch", "results/tiny", "--once", cwd=tmp_path).out
    folders = {path.parents[1].name for path in tmp_path.glob("results/tiny/tensorboard/**/events.out*")}
    assert len(folders) == 2 and all(name.startswith("reduce") for name in folders), folders
    assert [one["name"] for one in json.loads((tmp_path / "results/tiny/sweep.json").read_text())["names"]] == [
        "reduce/loss",
        "gather/loss",
    ]


def test_a_transform_without_loss_has_a_row_of_its_own(tmp_path):
    """Its sums are rounded in another way, and its signs follow from the network's seed."""
    cross = {"/network/recovery": [{}, {"hadamard": {"block": 64}}], "/network/loss/loss_rate": [0, 0.1]}
    sweep(tmp_path, cross, "--quiet", network={"loss": LOSS}, repeat={"network": 2})
    exact, transformed, lossy, both = groups(tmp_path)
    assert (exact.lossless, len(exact.run_ids)) == (True, 1)
    assert (transformed.lossless, transformed.without_loss, len(transformed.run_ids)) == (False, True, 2)
    assert lossy.twin_ids == exact.run_ids and set(both.twin_ids) == set(transformed.run_ids)


def mark_all(folder, name):
    for path in run_folders(folder, name):
        summary = summary_of(path)
        summary["warnings"].append({"pointer": "/checkpoint", "message": "from step 2", "mark": "resumed"})
        (path / "summary.json").write_text(json.dumps(summary))


LEARNING_RATES = {"/training/learning_rate": [0.001, 0.002]}


def test_every_table_of_the_program_has_the_marks(tmp_path):
    settings = {"low": "1%", "high": "90%", "tolerance_percent": 100, "seeds": 2, "max_runs": 6}
    write(tmp_path, network={"loss": LOSS}, search=settings)
    run("search", "spec.json", "--quiet", cwd=tmp_path)
    mark_all(tmp_path, "tiny")
    out = run("search", "spec.json", cwd=tmp_path).out
    verdicts = [line for line in out.splitlines() if line[0].isdigit()]
    assert verdicts and all(line.endswith(" (resumed)") for line in verdicts), out
    write(tmp_path, name="best", sweep={"best_over": list(LEARNING_RATES), "cross": LEARNING_RATES})
    run("sweep", "spec.json", "--quiet", cwd=tmp_path)
    mark_all(tmp_path, "best")
    rows, best = run("sweep", "spec.json", cwd=tmp_path).out.split("best by the mean selection loss over the seeds:\n")
    assert rows.count("completed (resumed)") == 2 and best.splitlines()[1].endswith("1 (resumed)")
    assert run("watch", "results/best", "--once", cwd=tmp_path).out.count("(resumed)") == 2


def test_the_best_values_count_each_training_once(tmp_path):
    chosen = {"best_over": list(LEARNING_RATES), "cross": LEARNING_RATES}
    write(tmp_path, sweep=chosen, network={"loss": NONE}, repeat={"weights": 2, "network": 3})
    out = run("sweep", "spec.json", cwd=tmp_path).out
    assert "12 runs in results/tiny" in out and len(run_folders(tmp_path)) == 4
    assert out.split("best by the mean selection loss over the seeds:\n")[1].splitlines()[1].endswith("  2")


@pytest.mark.parametrize("protocol", ["none", "selective_repeat"])
def test_virtual_time_is_equal_between_equal_runs_where_the_compute_time_is_given(tmp_path, protocol):
    write(tmp_path, network={"loss": LOSS}, time=CLOCK | {"retransmission": {"protocol": protocol}})
    lines = []
    for out in ("one", "two"):
        run("run", "spec.json", "--quiet", "--out", out, cwd=tmp_path)
        (folder,) = run_folders(tmp_path, out=out)
        lines.append([line["virtual_seconds"] for line in metrics_of(folder)])
    assert lines[0] == lines[1] and lines[0][-1] > 0.004
