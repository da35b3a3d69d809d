# SPDX-License-Identifier: Apache-2.0
"""droptest.watch and droptest.follow on files that grow between two looks."""

import json
import pickle

import pytest

import droptest
from droptest import watching


@pytest.fixture
def run(tmp_path):
    (tmp_path / "spec.json").write_text("{}")
    return tmp_path


def append(path, *lines, end="\n"):
    with path.open("a") as file:
        file.write("\n".join(map(json.dumps, lines)) + end)


def steps(lines):
    return [line["step"] for line in lines]


class Writer:
    """Stands for time: each pause of the watching side does the next piece of the run's work."""

    def __init__(self, monkeypatch, *pieces):
        self.pieces = list(pieces)
        monkeypatch.setattr(watching.time, "sleep", self.sleep)

    def sleep(self, seconds):
        assert self.pieces, "the watching side waits for a run that has ended"
        self.pieces.pop(0)()


def end(run, status="completed"):
    (run / "summary.json").write_text(json.dumps({"schema_version": 1, "status": status}))


def test_lines_come_as_they_are_written(run, monkeypatch):
    metrics = run / "metrics.jsonl"
    writer = Writer(
        monkeypatch,
        lambda: append(metrics, {"step": 0}, {"step": 2}),
        lambda: append(metrics, {"step": 4}, end=""),  # torn: not yet a line
        lambda: metrics.open("a").write("\n"),
        lambda: (append(metrics, {"step": 6}), end(run)),
    )
    assert steps(droptest.watch(run)) == [0, 2, 4, 6]
    assert not writer.pieces


def test_a_finished_run_ends_at_once(run, monkeypatch):
    append(run / "metrics.jsonl", {"step": 0}, {"step": 1})
    end(run)
    Writer(monkeypatch)
    assert steps(droptest.watch(run)) == [0, 1]


def test_a_run_that_continues_yields_the_steps_that_it_trains_again(run, monkeypatch):
    metrics = run / "metrics.jsonl"

    def resume():
        other = run / "other"
        append(other, {"step": 0}, {"step": 1})
        other.rename(metrics)

    append(metrics, {"step": 0}, {"step": 1}, {"step": 2, "seconds": 1})
    Writer(monkeypatch, resume, lambda: append(metrics, {"step": 2, "seconds": 9}, {"step": 3}), lambda: end(run))
    assert steps(droptest.watch(run)) == [0, 1, 2, 2, 3]


def test_a_file_that_is_written_anew_in_its_place_is_noticed(run, monkeypatch):
    # As where the number of a removed file is given to the next one: inode and size do not tell.
    metrics = run / "metrics.jsonl"
    append(metrics, {"step": 0}, {"step": 1}, {"step": 2, "seconds": 1})

    def rewrite():
        metrics.write_text("")
        append(metrics, {"step": 0}, {"step": 1}, {"step": 2, "seconds": 9}, {"step": 3})

    Writer(monkeypatch, rewrite, lambda: end(run))
    assert steps(droptest.watch(run)) == [0, 1, 2, 2, 3]


def test_events_follow_the_line_that_they_are_about(run, monkeypatch):
    append(run / "metrics.jsonl", {"step": 1}, {"step": 2}, {"step": 3})
    append(run / "events.jsonl", {"step": 2, "kind": "loss_spike"}, {"step": 3, "kind": "loss_rate"})
    end(run, "failed")
    Writer(monkeypatch)
    heard = []
    summary = droptest.follow(run, lambda line: heard.append(line["step"]), lambda event: heard.append(event["kind"]))
    assert heard == [1, 2, "loss_spike", 3, "loss_rate"]
    assert summary["status"] == "failed"


def test_lines_that_are_no_objects_are_left_out(run, monkeypatch):
    (run / "metrics.jsonl").write_bytes(b'\xff\n1\nnull\n{"step": 1}\n' + b"[" * 100000 + b"\n")
    end(run)
    Writer(monkeypatch)
    assert steps(droptest.watch(run)) == [1]


def test_a_long_file_is_read_in_pieces_and_not_kept(run):
    metrics = run / "metrics.jsonl"
    append(metrics, *({"step": step, "text": "x" * 1000} for step in range(3000)))
    tail = watching.LinesTail(metrics)
    lines = tail.new_lines()
    assert next(lines)["step"] == 0
    assert tail._offset < metrics.stat().st_size / 2, "the first line is there before the file was read to its end"
    assert steps(lines) == list(range(1, 3000))
    assert len(pickle.dumps(tail)) < metrics.stat().st_size / 50
    other = run / "other"
    append(other, *({"step": step, "text": "x" * 1000} for step in range(2000)), {"step": 2000})
    other.rename(metrics)
    assert steps(tail.new_lines()) == [2000]
    append(metrics, {"step": 2001, "text": "x" * 1000})
    assert steps(tail.new_lines()) == [2001], "it was trained again"


def test_patience_ends(run, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(watching.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with pytest.raises(droptest.RecordError, match="no line for 3 s"):
        list(droptest.watch(run, patience_seconds=3))


def test_a_folder_that_is_no_run_is_refused_at_the_call(tmp_path):
    with pytest.raises(droptest.MissingRecord, match="want one with a spec"):
        droptest.watch(tmp_path)
