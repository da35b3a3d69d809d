# SPDX-License-Identifier: Apache-2.0
"""Records and reports of other programs whose ranks end, or do not."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import droptest
from droptest import rank_counts
from droptest.__main__ import main
from droptest.report import write_report
from droptest.summary import text_table

LOSS = {"model": "bernoulli", "loss_rate": "5%"}


OF_NETWORK = ("network", "loss", "fill", "configured_mean_burst_packets", "expected", "recovery")


def call_flows(network, rank):
    flows = [network.flow("dp_gradient", rank), network.flow("sequence_forward", rank, (rank + 1) % 3, half="gather"),
             network.flow("parameter_gather", rank, half="gather")]  # fmt: skip
    for _ in range(20):
        for flow in flows:
            flow.lose(np.ones(17600, np.float32))
    network.count_exempt("barrier", 3, group_ranks=3)


def call_group(network, _):
    group, data = network.group("dp_gradient", [0, 1, 2]), np.ones(3520, np.float32)
    for _ in range(70):  # more calls than a word has bits
        if number := group.reduce(data.ctypes.data, data.size, "float32"):
            group.finish_reduce(number, data.ctypes.data, 0, data.size)


def write_program(folder, section=None, calls=call_flows, ranks=(0, 1, 2), seed=7):
    """The records of those of three ranks that write any; returns loss_statistics.json."""
    section = {"loss": LOSS} if section is None else section
    for rank in ranks:
        source = {"network": section, "seed": seed, "statistics": str(folder)}
        with droptest.Network(source, rank=rank, world_size=3) as network:
            calls(network, rank)
    return json.loads((folder / "loss_statistics.json").read_text())


def ranks_of(folder):
    return [json.loads(file.read_text()) for file in (folder / "ranks").glob("*.json")]


def without_theory(value):
    """A record without what the network says alone: the processes, and what is expected of bursts."""
    if isinstance(value, dict):
        return {key: without_theory(of) for key, of in value.items() if key not in OF_NETWORK}
    return [without_theory(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("calls", [call_flows, call_group])
@pytest.mark.parametrize("section", [
    {"loss": {"model": "gilbert_elliott", "loss_rate": "5%", "mean_burst_packets": 4}, "fill": "count_rescale"},
    {"loss": LOSS, "recovery": {"parity": {"data": 8, "parity": 2}}},
    {"loss": LOSS, "recovery": {"retransmit": {"protocol": "selective_repeat", "rounds": 1}}},
    {"loss": {"model": "none"}},
], ids=["bursts", "parity", "retransmission", "lossless"])  # fmt: skip
def test_counts_of_ranks_are_added_up_to_the_record_that_the_library_writes(section, calls, tmp_path):
    record = write_program(tmp_path, section, calls)
    ranks = ranks_of(tmp_path)
    for rank in ranks:
        rank_counts.check(rank, rank["rank"])
    assert rank_counts.merged(ranks, record) == record
    assert without_theory(rank_counts.merged(ranks, {})) == without_theory(record)


def test_ranks_that_nobody_has_added_up_are_added_up_at_load(tmp_path):
    whole, two, none = (tmp_path / name for name in ("whole", "two", "none"))
    write_program(whole)
    shutil.copytree(whole, two)
    write_program(tmp_path / "some", ranks=(0, 1))
    shutil.copy(tmp_path / "some/loss_statistics.json", two)  # the last rank was killed before it wrote this again
    shutil.copytree(whole, none)
    (none / "loss_statistics.json").unlink()
    of_whole, of_two, of_none = (droptest.load(folder) for folder in (whole, two, none))
    assert list(of_two.runs["status"]) == list(of_none.runs["status"]) == ["counted"] and of_two.warnings == []
    for name in ("loss_statistics", "links", "bursts"):
        frames = [getattr(records, name).drop(columns="run_id") for records in (of_whole, of_two)]
        pd.testing.assert_frame_equal(*frames)
    assert of_two.loss_statistics["packets"].sum() > droptest.load(tmp_path / "some").loss_statistics["packets"].sum()
    counts = ["packets", "lost", "configured_rate", "z"]
    assert of_none.loss_statistics[counts].equals(of_whole.loss_statistics[counts])
    assert list(of_none.runs["loss_rate"]) == pytest.approx([0.05]) and not of_none.runs["without_loss"].any()
    assert any("which does not have the loss process" in warning for warning in of_none.warnings)


def test_programs_have_statuses_of_their_own(tmp_path):
    write_program(tmp_path / "all")
    write_program(tmp_path / "some", ranks=(1,))
    (tmp_path / "killed/ranks").mkdir(parents=True)
    (tmp_path / "killed/ranks/lock").touch()
    statuses = {r.name: r.runs["status"].item() for r in droptest.load_all(tmp_path)}
    assert statuses == {"all": "counted", "some": "partly counted", "killed": "not counted"}
    (missing,) = droptest.load(tmp_path / "some").warnings
    assert missing.endswith(
        "the counts of ranks 0, 2 are missing, of 3 ranks: they still run, or have ended without them"
    )
    (unknown,) = droptest.load(tmp_path / "killed").warnings
    assert unknown.endswith("no rank has written its counts: the program still runs, or has ended without them")
    assert not droptest.load(tmp_path / "killed").runs["without_loss"].any()  # nobody knows


def test_counts_of_an_earlier_program_in_the_folder_are_not_those_of_the_present_one(tmp_path):
    write_program(tmp_path)
    for rank in range(3):  # as the ranks of the next program do when they begin
        (tmp_path / f"ranks/{rank}.json").unlink()
    records = droptest.load(tmp_path)
    assert list(records.runs["status"]) == ["not counted"] and records.loss_statistics.empty
    write_program(tmp_path / "other", ranks=(0,), seed=8)
    write_program(tmp_path / "mixed", ranks=(1, 2))
    shutil.copy(tmp_path / "other/ranks/0.json", tmp_path / "mixed/ranks")
    assert "rank 0 are missing" in droptest.load(tmp_path / "mixed").runs["error"].item()
    write_program(tmp_path / "other loss", {"loss": LOSS | {"loss_rate": "6%"}}, ranks=(0,))
    shutil.copy(tmp_path / "other loss/ranks/0.json", tmp_path / "mixed/ranks")
    assert "rank 0 are missing" in droptest.load(tmp_path / "mixed").runs["error"].item()


def test_files_that_are_not_named_after_a_rank_are_not_read(tmp_path):
    write_program(tmp_path, ranks=(0, 1))
    for name in ("02", "-2", "²", "two"):
        (tmp_path / f"ranks/{name}.json").write_text("{}")
    assert "rank 2 are missing" in droptest.load(tmp_path).runs["error"].item()


def test_a_program_that_is_killed_before_it_counts_is_there_without_counts(tmp_path):
    source = {"network": {"loss": LOSS}, "statistics": str(tmp_path / "mine")}
    program = f"import droptest, os; network = droptest.Network({source}); os._exit(9)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 9
    assert list(droptest.load(tmp_path / "mine").runs["status"]) == ["not counted"]


def test_a_record_without_the_files_of_its_ranks_is_whole(tmp_path):
    write_program(tmp_path / "results/mine")
    shutil.rmtree(tmp_path / "results/mine/ranks")
    (records,) = droptest.load_all(tmp_path / "results")
    assert list(records.runs["status"]) == ["counted"]


def test_a_file_that_no_rank_has_written_makes_the_program_unreadable(tmp_path):
    write_program(tmp_path, ranks=(0,))
    words = ranks_of(tmp_path)[0]["words"]
    for change in ({"words": words[:-1]}, {"words": [*words, 0]}, {"words": [-1]}, {"words": 3}, {"rank": "1"},
                   {"rank": 0}, {"world_size": 1}, {"network": 3}, {"exempt": {"rule": 3}},
                   {"exempt": {"rule": {"calls": 1, "bytes": "x"}}}):  # fmt: skip
        (tmp_path / "ranks/1.json").write_text(json.dumps(ranks_of(tmp_path)[0] | {"rank": 1} | change))
        (run,) = droptest.load(tmp_path).runs.itertuples()
        assert run.status == "unreadable" and "1.json: got a file that is not the counts of a rank" in run.error
        (tmp_path / "ranks/1.json").unlink()


def test_a_whole_record_that_is_newer_than_the_files_of_its_ranks_is_taken_as_it_is(tmp_path):
    write_program(tmp_path)
    (tmp_path / "ranks/1.json").write_text("{}")
    assert list(droptest.load(tmp_path).runs["status"]) == ["unreadable"]
    newest = (tmp_path / "ranks/1.json").stat().st_mtime_ns
    os.utime(tmp_path / "loss_statistics.json", ns=(newest, newest))
    assert list(droptest.load(tmp_path).runs["status"]) == ["counted"]


def test_a_record_whose_ranks_are_not_said_makes_the_program_unreadable(tmp_path):
    record = write_program(tmp_path)
    shutil.rmtree(tmp_path / "ranks")
    for ranks in ({"missing": []}, {"world_size": 3}, {"world_size": 3, "missing": 0}):
        (tmp_path / "loss_statistics.json").write_text(json.dumps(record | {"ranks": ranks}))
        (run,) = droptest.load(tmp_path).runs.itertuples()
        assert run.status == "unreadable" and "loss_statistics.json: /ranks: got {" in run.error


def test_programs_among_runs_are_in_the_report_of_the_runs(folder_of_programs):
    shutil.copytree(folder_of_programs / "ended", folder_of_programs / "own/ended")
    records = droptest.load(folder_of_programs / "own")
    assert sorted(records.runs["status"]) == ["counted", "unfinished"] and not records.of_programs
    written = write_report(records, folder_of_programs / "page")
    assert "2 runs: 1 unfinished, 1 counted" in written.report.read_text() and written.notes == []


def test_files_of_ranks_of_another_version_leave_the_record_as_it_is(tmp_path):
    record = write_program(tmp_path)
    for rank in ranks_of(tmp_path):
        (tmp_path / f"ranks/{rank['rank']}.json").write_text(json.dumps(rank | {"schema_version": 1}))
    records = droptest.load(tmp_path)
    assert list(records.runs["status"]) == ["counted"]
    assert len(records.links) == len(record["links"])


@pytest.fixture
def folder_of_programs(tmp_path):
    """A program that has ended, ones that were killed, one with losses of its training; and a run of droptest."""
    folder = tmp_path / "results"
    write_program(folder / "ended")
    (folder / "killed/ranks").mkdir(parents=True)
    write_program(folder / "losses")
    lines = [{"step": step, "train_loss": 5 - 0.1 * step} for step in range(20)]
    (folder / "losses/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "killed_early").mkdir()
    shutil.copy(folder / "losses/metrics.jsonl", folder / "killed_early")
    run = folder / "own/0123456789abcdef"
    run.mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps({"network": {}, "seeds": {"weights": 1, "data": 1, "network": 1}}))
    return folder


def test_a_killed_program_does_not_stop_the_report_of_its_folder(folder_of_programs, tmp_path, capsys):
    assert main(["report", str(folder_of_programs), "--out", str(tmp_path / "reports")]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("==")] == [
        f"== {name}" for name in ("ended", "killed", "killed_early", "losses", "own")]  # fmt: skip
    page = (tmp_path / "reports/report.html").read_text()
    assert "A program, all 3 ranks of which have written their counts" in page
    assert (
        "A program, not counted: no rank has written its counts: the program still runs, or has ended without" in page
    )
    assert "1 run: 1 unfinished" in page  # the run of droptest


def test_a_report_of_a_program_has_one_sentence_on_figures_that_it_cannot_have(folder_of_programs, tmp_path):
    written = write_report(droptest.load(folder_of_programs / "ended"), tmp_path)
    assert written.warnings == [] and len(written.notes) == 1
    assert {path.stem for path in written.plots} == {"burst_lengths", "loss_rate_check", "links"}
    page = re.sub(r"<script.*?</script>", "", (tmp_path / "report.html").read_text(), flags=re.DOTALL)
    assert page.count(written.notes[0]) == 1
    for words in ("Not drawn", "lossless twin", "missing: ", "failed", "diverged", "seed only", "tolerable", "nats"):
        assert words not in page, words
    killed = write_report(droptest.load(folder_of_programs / "killed"), tmp_path / "killed")
    assert len(killed.warnings) == 1 and killed.plots == []


def test_losses_that_a_program_writes_are_drawn(folder_of_programs, tmp_path):
    for name in ("losses", "killed_early"):
        written = write_report(droptest.load(folder_of_programs / name), tmp_path / name)
        assert "training_curves" in {path.stem for path in written.plots}, name


def test_the_summary_of_a_program_has_no_column_on_what_is_missing(folder_of_programs):
    out = text_table(droptest.load(folder_of_programs / "ended"))
    assert "missing: " not in out and "note" not in out and "0/1" not in out
