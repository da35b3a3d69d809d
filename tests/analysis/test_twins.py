# SPDX-License-Identifier: Apache-2.0
"""Lossless twins by the pointers that the program records, names of swept pointers, and marks of runs."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import synthetic
from synthetic import NONE, bernoulli

import droptest
from droptest import best_over, frames, pointers, report, summary, tables
from droptest.comparison import Pairing
from droptest.comparison import data as compared_points
from droptest.files import Run
from droptest.series import SeriesNamer, point_of
from droptest.twins import twin_key

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
LOSS = {"/network/loss": [NONE, bernoulli(0.1)]}


def rewrite(path, change):
    record = json.loads(path.read_text())
    change(record)
    synthetic.write_json(path, record)


def test_without_takes_members_away_and_keeps_the_spec():
    spec = {"a": {"b": 1, "c/d": {"e": 2}}, "files": [{"file": "x", "n": 1}, {"n": 2}], "f": {}}
    before = json.dumps(spec)
    assert pointers.without(spec, ["/a/c~1d/e", "/files/0/file", "/files/7/file", "/x/y", "/a/b/z"]) == {
        "a": {"b": 1}, "files": [{"n": 1}, {"n": 2}], "f": {},
    }  # fmt: skip
    assert pointers.without(spec, ["/a/b", "/a/c~1d/e", "/files", "/f"]) == {}, "an empty object is left out"
    assert json.dumps(spec) == before


def steps_of(work):
    """How many lines of Python `work` runs, each pass of a loop counted."""
    before, steps = sys.gettrace(), 0

    def trace(*_):
        nonlocal steps
        steps += 1
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("pattern", [True, False])
def test_twice_the_shards_are_twice_the_work(pattern):
    def without_names(shards):
        files = [{"file": f"{i}.bin", "crc32c": i} for i in range(shards)]
        names = ["/data/files/*/file"] if pattern else [f"/data/files/{i}/file" for i in range(shards)]
        found = {}
        steps = steps_of(lambda: found.update(pointers.without({"data": {"files": files}}, ["/name", *names])))
        assert found == {"data": {"files": [{"crc32c": i} for i in range(shards)]}}
        return steps

    assert without_names(2000) < 2.1 * without_names(1000), "the limit leaves room for the part that does not grow"


def test_a_load_makes_one_key_for_each_run(tmp_path, monkeypatch):
    folder = synthetic.write_sweep(tmp_path, LOSS, seeds=3)
    keyed = []
    monkeypatch.setattr(frames, "twin_key", lambda run, moved=(): keyed.append((run.run_id, moved)))
    droptest.load(folder)
    assert len(keyed) == len(set(keyed)) and {run_id for run_id, _ in keyed} >= {p.name for p in folder.glob("*/")}


def test_names_of_pointers_are_those_of_the_program():
    """point_text_test.cc reads the same vector."""
    for expected in json.loads((VECTORS / "point_names.json").read_text())["sets"]:
        assert pointers.short_names(list(expected)) == expected


FRACTION = "/network/compression/fraction"
OMITS = ["/network", "/time", "/seeds/network", "/numerics_version", "/name", "/checkpoint", "/data/text"]


def moved_corpus(spec):
    spec["data"] = {"text": "moved/a.txt", "sha256": "ab"}


def with_checkpoints(spec):
    spec["checkpoint"] = {"every_steps": 5}


@pytest.mark.parametrize("change", [moved_corpus, with_checkpoints])
def test_a_twin_may_differ_in_what_the_record_omits(tmp_path, change):
    folder = synthetic.write_sweep(tmp_path, LOSS, seeds=1, data={"text": "a.txt", "sha256": "ab"})
    for path in folder.glob("*/summary.json"):
        rewrite(path, lambda record: record.update(twin_omits=OMITS))
        if json.loads(path.read_text())["point"]["/network/loss"] != NONE:
            rewrite(path.parent / "spec.json", change)
    (lossy,) = (group for group in summary.groups(droptest.load(folder)) if not group.lossless)
    assert lossy.difference.n == 1
    rewrite(folder / lossy.run_ids[0] / "spec.json", lambda spec: spec["data"].update(sha256="cd"))
    (lossy,) = (group for group in summary.groups(droptest.load(folder)) if not group.lossless)
    assert lossy.note.startswith("no lossless twin"), "another text has other results"


def test_a_run_without_a_summary_has_the_twin_of_the_others(tmp_path):
    outcomes = lambda point, seed: "unfinished" if point["/network/loss"] != NONE and seed == 1 else "completed"  # noqa: E731
    folder = synthetic.write_sweep(tmp_path, LOSS, seeds=2, outcomes=outcomes)
    for path in folder.glob("*/summary.json"):
        rewrite(path, lambda record: record.update(twin_omits=OMITS))
        if json.loads(path.read_text())["point"]["/network/loss"] == NONE:
            rewrite(path.parent / "spec.json", with_checkpoints)
    runs = droptest.load(folder).runs
    assert runs.loc[~runs["lossless"], "twin"].notna().all()


def test_records_of_earlier_programs_have_twins(tmp_path):
    folder = Path(shutil.copytree(VECTORS / "results_of_0_1/results/sweep", tmp_path / "sweep"))
    assert all("twin_omits" not in json.loads(path.read_text()) for path in folder.glob("*/summary.json"))
    (lossy,) = (group for group in summary.groups(droptest.load(folder)) if not group.lossless)
    assert lossy.difference.mean == pytest.approx(4.856115371107397 - 4.850039294820609)
    # Half of the records from a later program.
    for name in ("492c6c5e0f3c1080", "cb65c23ab55105b5"):
        rewrite(folder / name / "summary.json", lambda record: record.update(twin_omits=[*OMITS, "/record"]))
        for path in folder.glob("*/spec.json"):
            rewrite(path, lambda spec: spec["backend"].clear())
        (lossy,) = (group for group in summary.groups(droptest.load(folder)) if not group.lossless)
        assert lossy.difference.n == 1, name


def test_the_best_of_several_compressions_has_the_twin_at_its_own_best():
    def compressed(run_id, fraction, loss):
        half = {"loss": loss, "fill": "zero"}
        of_class = {"compression": {"kind": "top_k", "fraction": fraction}, "reduce": half, "gather": half}
        spec = {"network": {"classes": {"dp_gradient": of_class}}}
        halves = [f"/network/classes/dp_gradient/{name}" for name in ("reduce", "gather")]
        return Run(run_id=run_id, path=Path(run_id), seeds=(1, 1, 1), spec=spec, twin_omits=tuple(halves),
                   point={FRACTION: fraction, "/network/loss": loss})  # fmt: skip

    runs = [compressed(f"{fraction} {i}", fraction, loss)
            for fraction in (0.1, 0.2) for i, loss in enumerate((NONE, bernoulli(0.1)))]  # fmt: skip
    moved = SeriesNamer(runs, [FRACTION]).moved
    assert len({twin_key(run, moved) for run in runs}) == 1 and len({twin_key(run) for run in runs}) == 2


def version_run(run_id, version, loss):
    half = {"loss": loss, "fill": "zero"}
    classes = {} if loss == NONE else {"tp_forward": {"reduce": half, "gather": half}}
    return Run(
        run_id=run_id, path=Path(run_id), seeds=(1, 1, 1), status="completed",
        spec={"numerics_version": version, "network": {"classes": classes}, "backend": {"name": "local"},
              "parallel": {"tensor": 2}, "seeds": {"weights": 1, "data": 1, "network": 1}},
    )  # fmt: skip


def test_versions_of_the_numerics_tell_lossy_runs_apart_but_no_twins():
    """Two versions have other fates; a lossless run has the version of its spec, which changes no result of it."""
    clean = version_run("a", 1, NONE)
    one, two = version_run("b", 1, bernoulli(0.1)), version_run("c", 2, bernoulli(0.1))
    namer = SeriesNamer([clean, one, two])
    assert [point_of(run)["/numerics_version"] for run in (clean, one, two)] == [1, 1, 2]
    assert [namer.series(run) for run in (clean, one, two)] == [
        "lossless", "numerics version 1, Bernoulli", "numerics version 2, Bernoulli",
    ]  # fmt: skip
    assert twin_key(clean) == twin_key(one) == twin_key(two)
    assert SeriesNamer([clean, two]).series(two) == "Bernoulli", "there is one version of lossy runs"


def test_runs_of_one_folder_that_differ_in_their_deadline_are_points_of_their_own():
    runs = [version_run(run_id, 2, bernoulli(0.1)) for run_id in ("a", "b")]
    for run, deadline in zip(runs, (50.0, 90.0), strict=True):
        run.spec["time"] = {"deadline_microseconds": deadline, "compute_milliseconds": 1}
    namer = SeriesNamer([version_run("c", 1, NONE), *runs])
    assert [namer.series(run) for run in runs] == [
        "deadline microseconds 50.0, Bernoulli", "deadline microseconds 90.0, Bernoulli",
    ]  # fmt: skip


def test_the_comparison_of_two_points_shows_their_networks(tmp_path):
    folder = synthetic.write_sweep(tmp_path, LOSS, seeds=1)
    for path in folder.glob("*/summary.json"):
        rewrite(path, lambda record: record.update(twin_omits=[*OMITS, "/record"]))
    lossless, lossy = compared_points(droptest.load(folder))["points"]
    different = {key for key in lossy["spec"] if lossy["spec"][key] != lossless["spec"].get(key)}
    assert "/network/classes/tp_forward/reduce/loss" in different
    assert all(key.startswith("/network") for key in different)
    assert not any(key.startswith(("/seeds", "/backend", "/record")) for key in lossy["spec"])


def test_series_have_the_names_and_the_order_of_the_sweep(tmp_path):
    cross = {"/network/reduce/loss": [NONE, bernoulli(0.1)], "/network/gather/fill": ["zero", "own"],
             "/network/reduce/fill": ["zero", "stale"]}  # fmt: skip
    folder = synthetic.write_sweep(tmp_path, cross, seeds=1)
    names = [{"pointer": pointer, "name": pointers.short_names(list(cross))[pointer]} for pointer in cross]
    for order in (names, names[::-1]):
        rewrite(folder / "sweep.json", lambda record: record.update(names=order))  # noqa: B023
        records = droptest.load(folder)
        fills = [f"{one['name']} zero" for one in order if one["pointer"].endswith("fill")]
        series = list(records.runs["series"])
        assert any(", ".join(fills) in one for one in series), series
    rewrite(folder / "sweep.json", lambda record: record.update(names=[{"pointer": "/a"}]))
    with pytest.raises(
        droptest.MalformedRecord, match=r"sweep.json: /names: got .* want a list of pointers with names"
    ):
        droptest.load(folder)


def test_points_that_are_one_run_have_distinguishing_names(tmp_path):
    cross = {"/network/reduce/fill": ["zero", "stale"], "/network/gather/fill": ["zero", "own"], **LOSS}
    folder = synthetic.write_sweep(tmp_path, cross, seeds=1)
    record = json.loads((folder / "sweep.json").read_text())
    lossless = [run for run in record["runs"] if run["point"]["/network/loss"] == NONE]
    assert len({run["run_id"] for run in lossless}) == 1
    (same,) = (run.same_points for run in droptest.load(folder).runs.itertuples() if run.lossless)
    assert same == "reduce/fill zero or stale; gather/fill zero or own"


def test_a_lossless_run_that_is_listed_for_several_networks_is_one_training(tmp_path):
    final = lambda point, seed: 2.0 + 0.1 * seed["weights"] + (  # noqa: E731
        0.5 + 0.01 * seed["network"] if point["/network/loss"] != NONE else 0)  # fmt: skip
    folder = synthetic.write_sweep(tmp_path, LOSS, repeat={"weights": 2, "network": 3}, final_losses=final)
    record = json.loads((folder / "sweep.json").read_text())
    first = {}
    for run in record["runs"]:
        if run["point"]["/network/loss"] == NONE:
            kept = first.setdefault(run["seeds"]["weights"], run["run_id"])
            if kept != run["run_id"]:
                shutil.rmtree(folder / run["run_id"])
            run["run_id"] = kept
    synthetic.write_json(folder / "sweep.json", record)
    records = droptest.load(folder)
    assert len(records.runs) == 2 + 6
    lossless, lossy = summary.groups(records)
    assert lossless.note == "is the lossless twin; one run for several points: network seeds 1, 2 or 3"
    assert (lossless.final.n, lossless.final.mean) == (2, pytest.approx(2.15))
    assert sum(lossy.statuses.values()) == 6 and lossy.difference.mean == pytest.approx(0.52)
    assert lossy.note == ""
    assert report._outcome(records) == (
        "8 runs planned: 8 completed. The spec has 12 pairs of point and seed; 4 share the run of another pair"
    )


def validated(run_id, network, loss, compression=None, omitted=("/network", "/time", "/validation/network")):
    """A run of no sweep whose evaluation loses packets or not, with the pointers that the program records."""
    half = {"loss": loss, "fill": "zero"}
    of_class = {"reduce": half, "gather": half} | ({"compression": compression} if compression else {})
    spec = {"parallel": {"tensor": 2}, "validation": {"network": network},
            "network": {"classes": {"tp_forward": of_class}}}  # fmt: skip
    return Run(run_id=run_id, path=Path(run_id), seeds=(1, 1, 1), status="completed", spec=spec, twin_omits=omitted)


def test_runs_of_one_folder_that_differ_in_their_validations_network_are_points_of_their_own():
    clean = validated("a", "lossless", NONE)
    runs = [validated(run_id, network, bernoulli(0.1)) for run_id, network in (("b", "lossless"), ("c", "lossy"))]
    namer = SeriesNamer([clean, *runs])
    assert [namer.series(run) for run in (clean, *runs)] == [
        "lossless", "validation lossless, Bernoulli", "validation lossy, Bernoulli",
    ]  # fmt: skip
    assert twin_key(clean) == twin_key(runs[0]) == twin_key(runs[1])


def test_equal_validations_are_in_no_series_of_compressed_runs():
    half = "/network/classes/tp_forward/reduce"
    runs = [
        validated("a", "lossless", NONE), validated("b", "lossless", bernoulli(0.1)),
        validated("c", "lossless", NONE, {"kind": "int4"}, (half,)),
        validated("d", "lossless", bernoulli(0.1), {"kind": "int4"}, (half,)),
    ]  # fmt: skip
    namer = SeriesNamer(runs)
    assert not any("validation" in namer.series(run) for run in runs)


def test_marks_of_several_runs_are_one_warning(tmp_path):
    """The text of each run has the step from which it went on."""
    folder = synthetic.write_sweep(tmp_path, LOSS, seeds=3)
    for step, path in enumerate(sorted(folder.glob("*/summary.json"))):
        mark = {"pointer": "/checkpoint", "message": f"the run went on from the checkpoint of step {step}"}
        rewrite(path, lambda record: record["warnings"].append(mark | {"mark": "resumed"}))  # noqa: B023
    found = [w for w in droptest.load(folder).warnings if "checkpoint" in w]
    assert len(found) == 1
    assert found[0].startswith("6 of 6 runs went on from a checkpoint: /checkpoint (") and found[0].endswith(", ...)")


MARKS = [
    {"pointer": "/checkpoint", "message": "went on from step 6", "mark": "resumed"},
    {"pointer": "/elastic", "message": "5 of 9 steps", "mark": "fewer_replicas"},
]


def test_a_run_that_computed_with_another_kernel_is_no_twin_of_others(tmp_path):
    folder = synthetic.write_sweep(tmp_path, LOSS, seeds=1)
    mark = {"pointer": "/kernels/attention", "message": "attention is computed by flash", "mark": "other_kernel"}
    found = []
    for path in folder.glob("*/summary.json"):
        (lossy,) = (group for group in summary.groups(droptest.load(folder)) if not group.lossless)
        found.append(lossy.difference.n)
        rewrite(path, lambda record: record["warnings"].append(mark))
    (lossy,) = (group for group in summary.groups(droptest.load(folder)) if not group.lossless)
    assert found == [1, 0] and lossy.difference.n == 1, "none, one, and both are marked"


def test_runs_that_were_resumed_or_lacked_replicas_are_marked_in_tables(tmp_path):
    folder = synthetic.write_sweep(tmp_path, LOSS, seeds=2)
    lossy = lambda path: json.loads(path.read_text())["point"]["/network/loss"] != NONE  # noqa: E731
    marked = next(filter(lossy, folder.glob("*/summary.json")))
    rewrite(marked, lambda record: record["warnings"].extend(MARKS))
    records = droptest.load(folder)
    run_id = marked.parent.name
    assert [w for w in records.warnings if run_id in w] == [
        f"1 of 4 runs went on from a checkpoint: /checkpoint ({run_id})",
        f"1 of 4 runs trained steps with fewer replicas: /elastic ({run_id})",
    ]  # fmt: skip
    assert dict(zip(records.runs["run_id"], records.runs["marks"], strict=True))[run_id] == "resumed, fewer replicas"
    lossless, lossy = summary.groups(records)
    assert lossy.marks == {"resumed": 1, "fewer replicas": 1} and not lossless.marks
    assert lossy.note == "resumed: 1 of 2 runs; fewer replicas: 1 of 2 runs" and "resumed" not in lossless.note
    assert "see the warning" not in lossy.note
    runs = tables.table("runs", records)
    status = {row[0]: row[runs.header.index("status")] for row in runs.rows}
    assert status[run_id] == "completed, resumed, fewer replicas"
    assert summary.as_json(lossy)["marks"] == {"resumed": 1, "fewer replicas": 1}
    assert list(summary.points(records)["marks"]) == ["", "resumed, fewer replicas"]
    assert list(best_over(records)["marks"]) == ["", "resumed, fewer replicas"]


def test_twins_are_paired_with_their_lossy_runs_whatever_their_network(tmp_path):
    """The twin of the record comes first; only a result that no network's seed changes stands for other seeds."""
    final = lambda point, seed: 2.0 + 0.1 * seed["network"] + (point["/network/loss"] != NONE)  # noqa: E731
    folder = synthetic.write_sweep(tmp_path, LOSS, repeat={"weights": 1, "network": 3}, final_losses=final)
    lossless, lossy = summary.groups(droptest.load(folder))
    assert Pairing(droptest.load(folder)).difference(lossy, lossless).mean == pytest.approx(1), (
        "each with the network of its own"
    )
    for run_id in lossless.run_ids[1:]:
        shutil.rmtree(folder / run_id)
    (folder / "sweep.json").unlink()
    lossless, lossy = summary.groups(droptest.load(folder))
    records = droptest.load(folder)
    assert [Pairing(records).difference(*two).n for two in ((lossy, lossless), (lossless, lossy))] == [3, 3]
    (twin,) = lossless.run_ids
    records.runs["twin"] = None
    assert Pairing(records).difference(lossy, lossless).n == 3
    records.files[twin].twin_omits = ("/network",)
    assert Pairing(records).difference(lossy, lossless).n == 1, "the seed changes the result"
    assert compared_points(records)["matches"]["0,1"] == [[0, lossy.run_ids.index(next(
        run_id for run_id in lossy.run_ids if records.files[run_id].seeds == records.files[twin].seeds
    ))]]  # fmt: skip
