# SPDX-License-Identifier: Apache-2.0
import json
import math
import shutil

import pytest
import synthetic
from synthetic import NONE, bernoulli, gilbert_elliott

import droptest
from droptest.__main__ import main
from droptest.files import idle_parts, read_json, read_metrics, read_run
from droptest.report import write_report
from droptest.summary import groups, text_table
from droptest.tables import table


def by_point(records):
    return {(g.series, g.loss_rate): g for g in groups(records)}


def test_every_planned_run_has_a_row_with_its_status(mixed):
    records = droptest.load(mixed)
    assert records.planned == 15
    assert len(records.runs) == 15
    assert records.runs["status"].value_counts().to_dict() == {
        "completed": 8, "diverged": 4, "failed": 1, "unfinished": 1, "missing": 1,
    }  # fmt: skip
    failed = records.of_status("failed").iloc[0]
    assert failed["error"] == "all_reduce: rank 1 of 4: rank 2 <is gone>"
    assert math.isnan(failed["final_validation_loss"])
    missing = records.of_status("missing").iloc[0]
    assert (missing["series"], missing["loss_rate"], missing["seed"]) == ("Bernoulli", 0.05, 3)
    assert set(records.of_status("diverged")["diverged_step"]) == {100}


def test_differences_are_to_the_twin_of_the_same_seed(mixed):
    records = droptest.load(mixed)
    runs = records.runs.set_index("run_id")
    for row in runs[runs["difference"].notna()].itertuples():
        twin = runs.loc[row.twin]
        assert twin["lossless"]
        assert twin["seed"] == row.seed
        assert row.difference == pytest.approx(row.loss_rate * (1 + 0.1 * row.seed), abs=1e-12)


def test_groups_have_hand_computed_means_and_intervals(mixed):
    points = by_point(droptest.load(mixed))
    lossless = points["lossless", 0.0]
    # 2.5, 3.0, 3.5: s = .5
    assert lossless.final.mean == pytest.approx(3.0)
    assert lossless.final.half_width == pytest.approx(4.30265 * 0.5 / math.sqrt(3), rel=1e-5)
    assert lossless.note == "is the lossless twin"
    one = points["Bernoulli", 0.01]  # seeds 1 and 2: differences .011 and .012
    assert one.difference.n == 2
    assert one.difference.mean == pytest.approx(0.0115, abs=1e-12)
    assert one.difference.half_width == pytest.approx(12.7062 * 0.0005, rel=1e-5)
    assert one.count("failed") == 1
    five = points["Bernoulli", 0.05]
    assert (five.final.n, five.difference.n, five.difference.has_width) == (1, 1, False)
    assert five.note == "one pair: no interval; unfinished: 1 of 3 runs; missing: 1 of 3 runs"
    assert (five.count("unfinished"), five.count("missing")) == (1, 1)
    forty = points["Bernoulli", 0.4]
    assert (forty.count("diverged"), forty.final.n, forty.note) == (3, 0, "no finished pair")


def test_precisions_make_series_whether_one_word_or_three(tmp_path):
    word = synthetic.write_sweep(tmp_path, {"/training/precision": ["float32", "bfloat16"]}, seeds=1, name="word")
    assert set(droptest.load(word).runs["series"]) == {"lossless, precision float32", "lossless, precision bfloat16"}
    precisions = [{"compute": c, "message": "float32", "master": "float32"} for c in ("float32", "bfloat16")]
    three = synthetic.write_sweep(tmp_path, {"/training/precision": precisions}, seeds=1, name="three")
    expected = {f"lossless, compute precision {c}" for c in ("float32", "bfloat16")}
    assert set(droptest.load(three).runs["series"]) == expected


def test_skipped_steps_are_those_of_the_summary(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/training/precision": ["float32", "float16"]}, seeds=1, name="skips")
    [scaled] = [path for path in folder.glob("*/spec.json") if "float16" in path.read_text()]
    summary = scaled.parent / "summary.json"
    loss_scale = {"final": 32768.0, "skipped_steps": 3}
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"loss_scale": loss_scale}))
    records = droptest.load(folder)
    skipped = records.runs.set_index("series")["skipped_steps"]
    assert skipped["lossless, precision float16"] == 3
    assert math.isnan(skipped["lossless, precision float32"])
    status = [row[4] for row in table("runs", records).rows]
    steps = records.runs["steps"].iloc[0]
    assert sorted(status) == ["completed", f"completed, 3 of {steps:.0f} steps skipped"]


def test_each_number_of_a_line_has_a_column_of_its_name(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli("5%")]}, seeds=1, name="columns")
    first, second = sorted(path.parent for path in folder.glob("*/metrics.jsonl"))
    lines = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    lines[1] |= {"lost_samples": 3, "perplexity": 9.5, "of_no_number": "text", "flag": True}
    lines[-1] |= {"lost_samples": 4}
    (second / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = droptest.load(folder).metrics
    assert not {"of_no_number", "flag", "classes"} & set(metrics.columns)
    rows = metrics[metrics["run_id"] == second.name].reset_index(drop=True)
    assert metrics[metrics["run_id"] == first.name]["lost_samples"].isna().all()
    known = {row: value for row, value in rows["lost_samples"].items() if not math.isnan(value)}
    assert known == {1: 3, len(lines) - 1: 4}
    assert rows["perplexity"].dropna().to_dict() == {1: 9.5}
    chosen = droptest.load(folder)._rows_of([second.name])["metrics"]  # of the best values of a sweep
    assert {number for number in chosen["lost_samples"] if not math.isnan(number)} == {3, 4}


def test_rates_in_percent_text_are_the_same_points(mixed, tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli("5%")]}, seeds=2)
    records = droptest.load(folder)
    assert set(records.runs["loss_rate"]) == {0.0, 0.05}
    assert set(records.runs["series"]) == {"lossless", "Bernoulli"}


def test_quickstart_has_two_curves_that_share_their_lossless_twins(tmp_path):
    records = droptest.load(synthetic.write_quickstart(tmp_path))
    points = by_point(records)
    rates = (0.01, 0.05, 0.2, 0.4)
    expected = {("lossless", 0.0)} | {(s, r) for s in ("Bernoulli", "Gilbert-Elliott, burst 8") for r in rates}
    assert set(points) == expected
    assert all(g.seeds == 3 for g in points.values())
    for series in ("Bernoulli", "Gilbert-Elliott, burst 8"):
        assert set(points[series, 0.2].twin_ids) == set(points["lossless", 0.0].run_ids)
    assert points["Gilbert-Elliott, burst 8", 0.4].mean_burst_packets == pytest.approx(8)
    statistics = records.loss_statistics
    assert set(statistics["half"]) == {"both", "reduce", "gather"}
    assert len(statistics) == 24 * 2 * 3
    row = statistics[(statistics["half"] == "both") & (statistics["loss_rate"] == 0.4)].iloc[0]
    assert row["realised_rate"] == pytest.approx(row["lost"] / row["packets"])


def test_twins_have_the_same_spec_and_differ_in_the_network_alone(tmp_path):
    def final(point, seed):
        return point["/parallel/tensor"] + seed / 8 + (0.25 if point["/network/loss"] != NONE else 0)

    cross = {"/parallel/tensor": [2, 4], "/network/loss": [NONE, bernoulli(0.1)]}
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=2, final_losses=final))
    assert set(records.runs["series"]) == {"lossless, TP 2", "lossless, TP 4", "TP 2, Bernoulli", "TP 4, Bernoulli"}
    assert records.runs.loc[~records.runs["lossless"], "difference"].tolist() == [0.25] * 4


def test_a_run_of_another_spec_is_no_twin(tmp_path):
    folder = tmp_path / "own"
    for loss, rate in ((NONE, 0.001), (bernoulli(0.1), 0.002)):
        spec = json.loads(json.dumps(synthetic.BASE))
        spec["network"]["loss"] = loss
        spec["training"]["learning_rate"] = rate
        synthetic.write_run(folder, spec)
    records = droptest.load(folder)
    assert records.runs["twin"].isna().all()


def test_threads_and_lossy_validation_do_not_hide_a_twin(tmp_path):
    folder = tmp_path / "own"
    for loss, threads, validation in ((NONE, 1, "lossless"), (bernoulli(0.1), 2, "lossy")):
        spec = json.loads(json.dumps(synthetic.BASE))
        spec["network"]["loss"] = loss
        spec["backend"] = {"name": "local", "timeout_seconds": 30 * threads, "threads_per_rank": threads}
        spec["validation"]["network"] = validation
        synthetic.write_run(folder, spec)
    assert droptest.load(folder).runs["twin"].notna().sum() == 1


def test_fills_make_series_and_share_the_lossless_run(tmp_path):
    cross = {"/network/fill": ["zero", "stale"], "/network/loss": [NONE, bernoulli(0.05), bernoulli(0.2)]}
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=2))
    # Lossless points of both fills resolve to one run.
    assert len(records.runs) == 2 + 2 * 2 * 2
    assert set(records.runs["series"]) == {"lossless", "fill zero, Bernoulli", "fill stale, Bernoulli"}
    assert records.runs.loc[~records.runs["lossless"], "twin"].notna().all()


def test_one_class_or_half_alone_is_a_series(tmp_path):
    classes = [{"tp_backward": {"loss": NONE}}, {"tp_forward": {"loss": NONE}}]
    cross = {"/network/classes": classes, "/network/loss": [NONE, bernoulli(0.05), bernoulli(0.2)]}
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=2, name="classes"))
    assert set(records.runs["series"]) == {
        "lossless", "tensor parallel backward no loss, Bernoulli", "tensor parallel forward no loss, Bernoulli",
    }  # fmt: skip
    assert by_point(records)["tensor parallel forward no loss, Bernoulli", 0.2].configured_rate == pytest.approx(0.2)
    cross = {"/network/gather/loss": [NONE, bernoulli(0.05)], "/network/reduce/loss": [bernoulli(0.2)]}
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=2, name="halves"))
    assert set(records.runs["loss_rate"]) == {0.0, 0.05}  # the half that varies is the axis


def test_crossed_rates_are_not_taken_for_seeds_of_one_point(tmp_path):
    rates = [NONE, bernoulli(0.05), bernoulli(0.2)]
    cross = {"/network/loss": rates, "/network/classes/tp_backward/loss": rates}
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=2))
    points = groups(records)
    assert len(points) == 9
    assert all(g.seeds == len(g.run_ids) == 2 for g in points)
    assert records.rate_pointer == "/network/loss"
    assert ("tensor parallel backward Bernoulli 5 %", 0.2) in by_point(records)
    assert ("tensor parallel backward Bernoulli 5 %", 0.0) in by_point(records)


def test_a_pointer_to_the_rate_itself_is_the_axis(tmp_path):
    base = json.loads(json.dumps(synthetic.BASE))
    base["network"]["loss"] = gilbert_elliott(0.1, 8)
    cross = {"/network/loss/loss_rate": [0.01, "20%"], "/training/learning_rate": [0.1, 0.2]}
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=1, base=base))
    assert set(records.runs["series"]) == {
        "Gilbert-Elliott, burst 8, learning rate 0.1", "Gilbert-Elliott, burst 8, learning rate 0.2",
    }  # fmt: skip
    assert set(records.runs["loss_rate"]) == {0.01, 0.2}


def test_a_single_run_needs_no_sweep(mixed):
    run_id = droptest.load(mixed).of_status("completed").iloc[-1]["run_id"]
    records = droptest.load(mixed / run_id)
    assert records.planned is None
    assert records.runs["run_id"].tolist() == [run_id]
    group = groups(records)[0]
    assert group.note == "no lossless twin; one seed: no interval"
    assert not group.final.has_width
    assert any("no lossless run" in warning for warning in records.warnings)


def test_runs_that_the_sweep_does_not_list_are_left_out_and_named(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE]}, seeds=1)
    other = json.loads(json.dumps(synthetic.BASE)) | {"seed": 99}
    run_id = synthetic.write_run(folder, other)
    records = droptest.load(folder)
    assert run_id not in set(records.runs["run_id"])
    assert any(run_id in warning for warning in records.warnings)


def test_a_torn_last_line_is_dropped_with_a_warning(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "validation_loss": 5.5}\n{"step": 10, "train_loss": 4.0}\n{"step": 20, "train_l')
    metrics = read_metrics(path)
    assert [line["step"] for line in metrics.lines] == [0, 10]
    assert metrics.warning == f"{path}: line 3 is torn off and was left out"
    path.write_bytes(b'{"step": 0}\n{"step": 10, "x": "\xe2\x82')  # torn inside a character
    assert [line["step"] for line in read_metrics(path).lines] == [0]


def test_a_bad_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 10, "tra\n{"step": 20}\n')
    with pytest.raises(droptest.MalformedRecord, match=r"metrics\.jsonl: line 2"):
        read_metrics(path)


def test_null_in_metrics_is_nan(mixed):
    records = droptest.load(mixed)
    run_id = records.of_status("diverged").iloc[0]["run_id"]
    last = records.metrics[records.metrics["run_id"] == run_id].iloc[-1]
    assert math.isnan(last["train_loss"])


def test_a_damaged_run_is_set_aside_and_named(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.1)]}, seeds=2)
    run_id = droptest.load(folder).runs.iloc[-1]["run_id"]
    (folder / run_id / "summary.json").write_text('{"status": "comple')
    records = droptest.load(folder)
    assert records.of_status("unreadable")["run_id"].tolist() == [run_id]
    assert any("summary.json: not JSON" in warning for warning in records.warnings)
    assert groups(records)[-1].final.n == 1


def test_records_of_a_newer_version_are_refused(tmp_path):
    path = tmp_path / "summary.json"
    path.write_text('{"schema_version": 2, "status": "completed"}')
    with pytest.raises(droptest.MalformedRecord, match="schema_version: got 2, this program reads 1"):
        read_json(path)
    assert read_run(tmp_path).status == "unreadable"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "got list, want a JSON object"),
        ('{"name": "x"}', "/runs: got NoneType, want a list"),
        ('{"runs": [{"run_id": "../../etc"}]}', "/runs/0/run_id: got '../../etc'"),
        ('{"runs": [17]}', "/runs/0/run_id: got None"),
        ("{", "not JSON"),
    ],
)
def test_a_bad_sweep_is_an_error_that_names_the_file(tmp_path, text, message):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(droptest.MalformedRecord) as error:
        droptest.load(tmp_path)
    assert message in str(error.value)
    assert str(tmp_path / "sweep.json") in str(error.value)


def test_runs_beside_a_sweep_that_was_cut_are_read_without_it(mixed, tmp_path):
    folder = tmp_path / "mixed"
    shutil.copytree(mixed, folder)
    sweep = folder / "sweep.json"
    sweep.write_text(sweep.read_text()[:200])
    records = droptest.load(folder)
    assert set(records.runs["run_id"]) >= {path.parent.name for path in folder.glob("*/summary.json")}
    (warning,) = [text for text in records.warnings if "sweep.json" in text]
    assert "not JSON" in warning and "the runs are those in the folder" in warning


def test_a_sweep_that_was_cut_beside_a_search_leaves_no_run_out(mixed, tmp_path):
    folder = tmp_path / "mixed"
    shutil.copytree(mixed, folder)
    whole = droptest.load(folder)
    synthetic.write_search(folder, {}, [])
    (folder / "sweep.json").write_text("{")
    records = droptest.load(folder)
    assert set(records.runs["run_id"]) >= set(whole.runs.loc[whole.runs["status"] != "missing", "run_id"])
    assert not [text for text in records.warnings if "were left out" in text and "not part of" in text]


@pytest.mark.parametrize(("name", "what"), [("metrics.jsonl", "curves"), ("loss_statistics.json", "losses of packets")])
def test_a_finished_run_without_a_record_is_named(mixed, tmp_path, name, what):
    folder = tmp_path / "mixed"
    shutil.copytree(mixed, folder)
    assert not [text for text in droptest.load(folder).warnings if "--again" in text]
    finished = [path for path in folder.glob("*/summary.json") if json.loads(path.read_text())["status"] == "completed"]
    for summary in finished[:2]:
        (summary.parent / name).unlink()
    (warning,) = [text for text in droptest.load(folder).warnings if "--again" in text]
    assert f"{name} and 1 more: no such file: these runs have no {what} here" in warning


def test_folders_without_records_are_errors(tmp_path):
    with pytest.raises(droptest.MissingRecord, match="no such folder"):
        droptest.load(tmp_path / "nope")
    with pytest.raises(droptest.MissingRecord, match="no records here"):
        droptest.load(tmp_path)


def test_several_experiments_are_loaded_one_by_one(tmp_path):
    for name in ("b", "a"):
        synthetic.write_sweep(tmp_path, {"/network/loss": [NONE]}, seeds=1, name=name)
    with pytest.raises(droptest.RecordError, match=r"several experiments \(a, b\)"):
        droptest.load(tmp_path)
    assert [records.name for records in droptest.load_all(tmp_path)] == ["a", "b"]


def test_loss_where_none_was_configured_has_an_infinite_z(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [bernoulli(0.1)]}, seeds=1)
    run_id = droptest.load(folder).runs.iloc[0]["run_id"]
    path = folder / run_id / "loss_statistics.json"
    record = json.loads(path.read_text())
    record["classes"]["tp_forward"]["halves"]["gather"] |= {"configured_rate": 0.0, "lost": 3, "z": None}
    path.write_text(json.dumps(record))
    assert groups(droptest.load(folder))[0].z == math.inf


@pytest.mark.parametrize("unknown", [None, 0])
def test_measures_of_nothing_are_unknown_in_frames_and_a_dash_in_tables(tmp_path, unknown):
    """Null, and the 0 (cosine: 1) that older records have in its place."""
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [bernoulli(0.1)]}, seeds=1)
    path = folder / droptest.load(folder).runs.iloc[0]["run_id"]
    statistics, diagnostics = (json.loads((path / f"{name}.json").read_text())
                               for name in ("loss_statistics", "diagnostics"))  # fmt: skip
    measures = dict.fromkeys(("nmse", "divergence_max", "divergence_rms", "bias"), unknown)
    measures |= {"cosine": None if unknown is None else 1, "sampled_calls": 0}
    forward = statistics["classes"]["tp_forward"]
    forward |= {key: value for key, value in measures.items() if key != "bias"}
    forward["halves"]["gather"] |= dict.fromkeys(("packets", "lost"), 0)
    forward["halves"]["gather"] |= dict.fromkeys(("configured_rate", "realised_rate", "z"), unknown)
    diagnostics["classes"]["tp_forward"]["layers"][1] |= measures
    (path / "loss_statistics.json").write_text(json.dumps(statistics))
    (path / "diagnostics.json").write_text(json.dumps(diagnostics))
    records = droptest.load(folder)
    frame = records.loss_statistics[records.loss_statistics["class"] == "tp_forward"].set_index("half")
    assert frame.loc["both", ["nmse", "cosine", "divergence_max", "divergence_rms"]].isna().all()
    assert frame.loc["gather", ["configured_rate", "realised_rate", "z"]].isna().all()
    assert frame.loc["reduce", ["configured_rate", "realised_rate", "z"]].notna().all()
    layer = records.layers[(records.layers["class"] == "tp_forward") & (records.layers["layer"] == 0)].iloc[0]
    assert layer[["bias", "nmse", "cosine", "divergence_max", "divergence_rms"]].isna().all()
    shown = table("loss_statistics", records)
    rows = [dict(zip(shown.header, row, strict=True)) for row in shown.rows]
    whole, half = (next(row for row in rows if row["class"].endswith("forward") and row["half"] == name)
                   for name in ("both halves", "gather half"))  # fmt: skip
    assert (whole["NMSE"], whole["cosine"]) == ("-", "-")
    assert [half[name] for name in ("configured", "realised", "smallest z", "largest z")] == ["-"] * 4
    other = next(row for row in rows if row["class"].endswith("backward") and row["half"] == whole["half"])
    assert other["NMSE"] == "0.15000"


def test_large_seeds_are_kept_exactly(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE]}, seeds=1, seed=2**64 - 1)
    assert droptest.load(folder).runs.iloc[0]["seed"] == 2**64 - 1


def test_a_sweep_without_any_run_yet_loads(tmp_path):
    cross = {"/network/loss": [NONE, bernoulli(0.1)]}
    folder = synthetic.write_sweep(tmp_path, cross, seeds=2, outcomes=lambda *_: "missing")
    records = droptest.load(folder)
    assert records.runs["status"].tolist() == ["missing"] * 4
    assert "Bernoulli" in text_table(records)


IDLE = {"/parallel/tensor": [1, 2], "/network/fill": ["zero", "stale"], "/network/loss": [NONE, bernoulli("5%")]}


@pytest.fixture(scope="module")
def idle_folder(tmp_path_factory):
    return synthetic.write_sweep(tmp_path_factory.mktemp("idle"), IDLE, seeds=2)


@pytest.fixture(scope="module")
def idle_page(idle_folder, tmp_path_factory):
    """The text of its report."""
    written = write_report(droptest.load(idle_folder), tmp_path_factory.mktemp("report"))
    return written.report.read_text(encoding="utf-8")


def test_points_that_are_one_run_are_shown_as_one(idle_folder, idle_page):
    records = droptest.load(idle_folder)
    assert len(records.runs) == 2 * (1 + 1 + 2)  # one lossless run of each number of ranks, and two lossy ones
    notes = {(g.series, g.loss_rate): g.note for g in groups(records)}
    assert notes["lossless, TP 2", 0.0] == "is the lossless twin; one run for several points: fill zero or stale"
    assert notes["TP 2, fill zero, Bernoulli", 0.05] == ""
    one_rank = notes["lossless, TP 1", 0.0]
    assert one_rank.startswith(
        "is the lossless twin; one run for several points: fill zero or stale; loss lossless or Bernoulli 5 %;"
    )
    text = text_table(records)
    assert "one run for several points: fill zero or stale; loss lossless or Bernoulli 5 %" in text
    assert (
        "8 runs planned: 8 completed. The spec has 16 pairs of point and seed; 8 share the run of another pair."
        in idle_page
    )
    assert idle_page.count("one run for several points: fill zero or stale") == 2


def test_what_a_spec_says_without_effect_is_a_warning(idle_folder, idle_page, tmp_path, capsys):
    records = droptest.load(idle_folder)
    (warning,) = records.warnings
    assert warning.startswith("2 of 8 runs: /network: no packet is sent, so none is lost (")
    idle = records.runs[records.runs["idle"] != ""]
    assert set(idle["series"]) == {"lossless, TP 1"} and set(idle["idle"]) == {"/network"}
    assert all(run_id in warning for run_id in idle["run_id"])
    notes = [g.note for g in groups(records) if "see the warning" in g.note]
    assert len(notes) == 1 and notes[0].endswith("; see the warning about /network")
    assert main(["table", str(idle_folder)]) == 0
    out = capsys.readouterr().out
    assert "see the warning about /network" in out and f"warning: {warning}" in out
    assert idle_page.count("no packet is sent, so none is lost") == 1
    assert idle_page.count("see the warning about /network") == 1
    # Of runs that are not there yet sweep.json alone knows, and a single run its summary alone.
    missing = synthetic.write_sweep(tmp_path, IDLE, seeds=2, name="missing", outcomes=lambda *_: "missing")
    assert droptest.load(missing).warnings[0].startswith("2 of 8 runs: /network: no packet is sent")
    alone = synthetic.BASE | {"parallel": {"tensor": 1}, "network": {"loss": bernoulli(0.1)}}
    run_id = synthetic.write_run(tmp_path / "alone", alone)
    expected = f"1 of 1 runs: /network: no packet is sent, so none is lost ({run_id})"
    assert expected in droptest.load(tmp_path / "alone" / run_id).warnings


@pytest.mark.parametrize("warnings", [None, 3, ["x"], [{"pointer": "/network"}], [{}]])
def test_warnings_of_another_form_are_passed_over(warnings):
    assert idle_parts({"warnings": warnings}) == ()


def test_the_summary_says_what_recoveries_did(tmp_path):
    cross = {"/network/loss": [NONE, bernoulli(0.1)]}
    folder = synthetic.write_sweep(tmp_path, cross, seeds=2)
    for run in json.loads((folder / "sweep.json").read_text())["runs"][2:]:
        path = folder / run["run_id"] / "loss_statistics.json"
        record = json.loads(path.read_text())
        for statistics in record["classes"].values():
            statistics["halves"]["reduce"]["recovery"] = {
                "policy": "parity(data=8, parity=2)", "repaired": 15_000, "residual": 1000, "residual_bytes": 1_408_000,
                "resent": 2000, "resend_rounds": 3,
            }  # fmt: skip
        synthetic.write_json(path, record)
    records = droptest.load(folder)
    assert len(records.recoveries) == 2 * 2  # runs, classes
    row = records.recoveries.iloc[0]
    assert (row["half"], row["policy"], row["packets"], row["repaired"]) == (
        "reduce", "parity(data=8, parity=2)", 200_000, 15_000,
    )  # fmt: skip
    assert (row["residual"], row["residual_bytes"], row["resent"], row["resend_rounds"]) == (1000, 1_408_000, 2000, 3)
    lossless, lossy = groups(records)
    assert (lossy.repaired_rate, lossy.resent_rate) == pytest.approx((0.075, 0.01))
    assert math.isnan(lossless.repaired_rate) and math.isnan(lossy.late_rate)
    header, _, first, second = text_table(records).splitlines()
    assert "repaired" in header and "resent" in header and "late" not in header
    assert "7.5000 %" in second and "1.0000 %" in second and "7.5" not in first


def test_a_reliable_networks_repetitions_are_resent_packets(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [bernoulli(0.1)]}, seeds=1)
    run = json.loads((folder / "sweep.json").read_text())["runs"][0]["run_id"]
    summary = json.loads((folder / run / "summary.json").read_text())
    summary["time"] = {"virtual_seconds": 2.0, "compute_seconds": 1.0, "packets": 4000, "repeated_packets": 450,
                       "timeouts": 7, "late_packets": 0, "idle_seconds": 0.25,
                       "exposed_seconds": {"tp_forward": 0.5, "dp_gradient": 0.125}}  # fmt: skip
    synthetic.write_json(folder / run / "summary.json", summary)
    records = droptest.load(folder)
    row = records.time.iloc[0]
    assert (row["packets"], row["repeated_packets"], row["timeouts"]) == (4000, 450, 7)
    assert (row["idle_seconds"], row["exposed_seconds"]) == (0.25, 0.625)
    assert math.isnan(row["late_rate"])  # no deadline
    assert groups(records)[0].resent_rate == pytest.approx(450 / 4000)


def test_a_twin_without_its_spec_is_missed(tmp_path):
    """One seed less in a difference is said in the warnings and in the row."""
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.1)]}, seeds=3)
    twin = json.loads((folder / "sweep.json").read_text())["runs"][1]["run_id"]
    (folder / twin / "spec.json").unlink()
    records = droptest.load(folder)
    assert any(str(folder / twin / "spec.json") in warning for warning in records.warnings)
    lossy = next(group for group in groups(records) if not group.lossless)
    assert lossy.difference.n == 2
    assert "2 of 3 finished runs have a finished lossless twin" in lossy.note


def test_a_twin_that_has_not_finished_is_missed(tmp_path):
    folder = synthetic.write_sweep(
        tmp_path, {"/network/loss": [NONE, bernoulli(0.1)]}, seeds=3,
        outcomes=lambda point, seed: "failed" if point["/network/loss"] == NONE and seed == 2 else "completed",
    )  # fmt: skip
    lossy = next(group for group in groups(droptest.load(folder)) if not group.lossless)
    assert lossy.note == "2 of 3 finished runs have a finished lossless twin"


def test_a_run_that_failed_before_its_first_line_hides_no_other(tmp_path):
    folder = synthetic.write_sweep(
        tmp_path, {"/network/loss": [NONE, bernoulli(0.1)]}, seeds=1,
        outcomes=lambda point, _: "completed" if point["/network/loss"] == NONE else "failed",
    )  # fmt: skip
    failed = json.loads((folder / "sweep.json").read_text())["runs"][1]["run_id"]
    for name in ("spec.json", "metrics.jsonl"):
        (folder / failed / name).unlink()
    records = droptest.load(folder)
    assert write_report(records, tmp_path / "out").report.is_file()
    data = droptest.plots.data("training_curves", records)
    assert set(data["panel"]) == {"lossless"} and data["step"].max() == 200
    assert droptest.plots.data("final_loss", records)["series"].tolist() == ["Bernoulli", "lossless"]
