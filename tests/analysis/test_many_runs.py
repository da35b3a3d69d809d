# SPDX-License-Identifier: Apache-2.0
"""Loading and the report's tables take time and memory in proportion to the number of runs.

Nothing is timed: the tests count the lines of the package that are executed and the elements that pandas searches, for
some runs and for twice as many. A part that grows with the square of the runs is executed four times as often.
"""

import json
import pickle
import sys
import tracemalloc
from collections import Counter

import pandas as pd
import pytest
import synthetic
from synthetic import NONE, PACKAGES, bernoulli

import droptest
from droptest import comparison, files, plots, records, summary, tables

MOST = 2.6  # times as often with twice the runs
FEW = 150  # executions that say nothing
WALL = {"phases": {"products": 4.0, "other": 1.0, "evaluation": 2.0}, "communication": {"tp_forward": 1.0},
        "waiting": {"tp_forward": 0.7}}  # fmt: skip
BASE = synthetic.BASE | {"training": {"steps": 50, "learning_rate": 0.003}}


def rates(count):
    return [NONE, *(bernoulli((index + 1) / (2 * count)) for index in range(count))]


def with_wall_seconds(folder):
    for path in folder.glob("*/metrics.jsonl"):
        synthetic.add_wall_seconds(path.parent, lambda _: [WALL, WALL])
    return folder


def more_points(out, size):
    return with_wall_seconds(synthetic.write_sweep(out, {"/network/loss": rates(12 * size)}, seeds=2, base=BASE))


def more_seeds(out, size):
    return with_wall_seconds(synthetic.write_sweep(out, {"/network/loss": rates(2)}, seeds=14 * size, base=BASE))


def more_series(out, size):
    sizes = [1000 + index for index in range(12 * size)]
    cross = {"/network/payload_bytes": sizes, "/network/loss": rates(1)}
    return synthetic.write_sweep(out, cross, seeds=1, base=BASE)


def best_values(out, size):
    cross = {"/training/learning_rate": [0.001, 0.003], "/network/loss": rates(12 * size)}
    return synthetic.write_sweep(out, cross, seeds=1, base=BASE, best_over=["/training/learning_rate"],
                                 selection_losses=lambda point, _: 2 + point["/training/learning_rate"])  # fmt: skip


def recoveries_in_time(out, size):
    parity = {"parity": {"data": 8, "parity": 2}}
    cross = {"/network/recovery": [{}, parity], "/network/loss": rates(1)}
    clock = {"time": {"retransmission": {"protocol": "none"}}}
    return synthetic.write_sweep(out, cross, seeds=10 * size, base=BASE | clock)


def runs_without_a_sweep(out, size):
    folder = more_points(out, size)
    (folder / "sweep.json").unlink()
    return folder


def networks_of_one_lossless_run(out, size):
    """A sweep lists the lossless run for every network: the run of the first one stands for all."""
    folder = synthetic.write_sweep(out, {"/network/loss": rates(1)}, repeat={"network": 25 * size}, base=BASE)
    sweep = json.loads((folder / "sweep.json").read_text())
    lossless = [run for run in sweep["runs"] if run["point"]["/network/loss"] == NONE]
    for run in lossless:
        run["run_id"] = lossless[0]["run_id"]
    synthetic.write_json(folder / "sweep.json", sweep)
    return folder


def lossless_runs_of_many_networks(out, size):
    """Records in which every network has a lossless run of its own: each lossy run has many twins to choose from."""
    return synthetic.write_sweep(out, {"/network/loss": rates(1)}, repeat={"network": 25 * size}, base=BASE)


def every_table(folder):
    loaded = droptest.load(folder)
    for name in tables.TABLES:
        tables.table(name, loaded)
    droptest.points(loaded)
    summary.curves(loaded)
    summary.text_table(loaded)


def executions(work):
    """How often each line of the package was executed, and how many elements pandas searched or compared for each of
    its functions, by function."""
    found = Counter()
    package = str(PACKAGES / "droptest")

    def name_of(code):
        return f"{code.co_filename.removeprefix(package)}: {code.co_qualname}"

    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(package):
            return None
        found[name_of(frame.f_code)] += event in ("call", "line")
        return trace

    def counted(method):
        def searched(self, *arguments, **options):
            frame = sys._getframe(1)
            while frame is not None and not frame.f_code.co_filename.startswith(package):
                frame = frame.f_back
            if frame is not None:
                found[f"elements searched in {name_of(frame.f_code)}"] += len(self)
            return method(self, *arguments, **options)

        return searched

    with pytest.MonkeyPatch.context() as patch:
        for name in ("isin", "_cmp_method", "map"):
            patch.setattr(pd.Series, name, counted(getattr(pd.Series, name)))
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(before)
    return found


def assert_in_proportion(work, folders):
    """work: a function of a folder; folders: of results, the second with twice the runs of the first."""
    for folder in folders:
        work(folder)  # fills caches
    once, twice = (executions(lambda folder=folder: work(folder)) for folder in folders)
    assert sum(once.values()) > 1000
    grown = {name: (once[name], count) for name, count in twice.items() if count > MOST * once[name] + FEW}
    assert not grown, "executed more than in proportion to the runs"


@pytest.mark.parametrize(
    "write",
    [more_points, more_seeds, more_series, best_values, recoveries_in_time, runs_without_a_sweep,
     networks_of_one_lossless_run, lossless_runs_of_many_networks],
)  # fmt: skip
def test_loading_and_tables_execute_twice_as_much_for_twice_the_runs(tmp_path, write):
    assert_in_proportion(every_table, [write(tmp_path / str(size), size) for size in (1, 2)])


@pytest.mark.parametrize("write", [more_points, more_seeds, more_series, recoveries_in_time])
def test_the_data_of_figures_execute_twice_as_much_for_twice_the_runs(tmp_path, write):
    def every_figure(folder):
        loaded = droptest.load(folder)
        for name in plots.FIGURES:
            try:
                plots.data(name, loaded)
            except plots.NothingToDraw:
                continue

    assert_in_proportion(every_figure, [write(tmp_path / str(size), size) for size in (1, 2)])


def test_the_comparison_of_points_executes_twice_as_much_for_twice_the_seeds(tmp_path):
    folders = [more_seeds(tmp_path / str(size), size) for size in (1, 2)]
    assert_in_proportion(lambda folder: comparison.data(droptest.load(folder)), folders)


@pytest.fixture
def reads(monkeypatch):
    """How often each file was read."""
    found = Counter()

    def counted(read):
        def of(path):
            found[path] += 1
            return read(path)

        return of

    monkeypatch.setattr(files, "read_json", counted(files.read_json))
    read_lines = files.metric_lines
    monkeypatch.setattr(files, "metric_lines", lambda path, _: counted(lambda file: read_lines(file, []))(path))
    monkeypatch.setattr(records, "read_json", files.read_json)
    return found


def test_each_file_of_a_run_is_read_once(tmp_path, reads):
    folder = best_values(tmp_path, 1)
    every_table(folder)
    present = {path for path in folder.rglob("*.json*") if path.parent != folder}
    assert present and present <= set(reads) and set(reads.values()) == {1}


def test_a_run_that_a_search_judges_again_is_read_once(tmp_path, reads):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.1)]}, seeds=2, base=BASE)
    ids = [(run["run_id"], run["seed"]) for run in json.loads((folder / "sweep.json").read_text())["runs"]]
    judged = [(*one, 0.5) for one in ids[2:]]
    synthetic.write_search(folder, {0.1: ("passes", 0.5, 0.4, 0.6, judged), 0.2: ("fails", 2, 1, 3, judged)}, ids[:2])
    assert len(droptest.load(folder).runs) == 4
    assert {path.parent.name for path in reads} >= {run_id for run_id, _ in ids}
    assert set(reads.values()) == {1}


def test_records_keep_the_rows_of_metrics_in_frames_alone(tmp_path):
    """The runs of an experiment take the same memory whatever the number of their lines."""
    sizes, frames = [], []
    for place, every in enumerate((10, 1)):
        base = BASE | {"record": {"every_steps": every, "sample_every_steps": 50}}
        folder = synthetic.write_sweep(tmp_path / str(place), {"/network/loss": rates(1)}, seeds=1, base=base)
        loaded = droptest.load(folder)
        sizes.append(len(pickle.dumps(loaded.files)))
        frames.append(len(loaded.metrics))
    assert frames[1] > 5 * frames[0]
    assert sizes[1] < 1.1 * sizes[0]


def lines_of(steps, **more):
    return "".join(json.dumps({"step": step, "validation_loss": 2.0, **more}) + "\n" for step in steps)


def test_the_lines_of_a_run_are_not_in_memory_at_once(tmp_path):
    metrics = tmp_path / synthetic.write_run(tmp_path, BASE) / "metrics.jsonl"
    metrics.write_text(lines_of(range(5000), ranks=[{"cpu_percent": [1.0] * 500, "wall_seconds": WALL}]))
    droptest.load(metrics.parent)  # imports modules
    tracemalloc.start()
    try:
        loaded = droptest.load(metrics.parent)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(loaded.metrics) == 5000 and peak < metrics.stat().st_size / 2
    seconds = loaded.wall_seconds.set_index(["kind", "name"])["seconds"]
    assert seconds["phase", "products"] == pytest.approx(4999 * WALL["phases"]["products"])


def test_of_two_lines_with_one_step_the_later_counts(tmp_path):
    metrics = tmp_path / synthetic.write_run(tmp_path, BASE) / "metrics.jsonl"
    metrics.write_text(lines_of([0, 1, 2]) + lines_of([1, 2, 3], seconds=9.0))
    loaded = droptest.load(metrics.parent)
    assert loaded.metrics["step"].tolist() == [0, 1, 2, 3]
    assert loaded.metrics["seconds"].tolist()[1:] == [9.0] * 3
    assert loaded.runs["last_step"].tolist() == [3]


def test_a_damaged_run_leaves_no_rows(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": rates(1)}, seeds=1, base=BASE)
    damaged, whole = (run["run_id"] for run in json.loads((folder / "sweep.json").read_text())["runs"])
    (folder / damaged / "metrics.jsonl").write_text(lines_of(range(2500)) + "no JSON\n" + lines_of([2500]))
    loaded = droptest.load(folder)
    assert loaded.runs.set_index("run_id").loc[damaged, "status"] == "unreadable"
    assert "line 2501: " in loaded.runs.set_index("run_id").loc[damaged, "error"]
    assert set(loaded.metrics["run_id"]) == set(loaded.wall_seconds["run_id"]) | {whole} == {whole}


def test_a_run_reads_its_lines_again_where_they_are_asked_for(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [bernoulli(0.1)]}, seeds=1, base=BASE)
    loaded = droptest.load(folder)
    (run,) = loaded.files.values()
    assert [line["step"] for line in run.metrics] == loaded.metrics["step"].tolist()
    assert set(run.diagnostics["classes"]) == {"tp_forward", "tp_backward"}
    assert run.last_step == 50 and "burst_histogram" not in json.dumps(run.loss_statistics)
    for path in run.path.iterdir():
        path.unlink()
    assert (run.metrics, run.diagnostics) == ([], {})
