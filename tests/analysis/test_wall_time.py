# SPDX-License-Identifier: Apache-2.0
"""Where the wall time goes: shares, bottlenecks and their words, from lines of metrics with known seconds."""

import copy
import json

import pytest
import synthetic
from synthetic import NONE, bernoulli

import droptest
from droptest import interactive, plots, wall_time
from droptest.__main__ import main

# Seconds of a line, by rank. Rank 1 arrives last: it waits for nobody. All add up to 10.
RANK_0 = {
    "phases": {"products": 3.0, "attention": 1.0, "optimizer": 0.4, "gradient_norm": 0.1, "evaluation": 0.5,
               "other": 0.02, "data": 0.01, "records": 0.17},
    "communication": {"tp_forward": 3.0, "dp_gradient": 1.8},
    "waiting": {"tp_forward": 2.0, "dp_gradient": 0.5},
}  # fmt: skip
RANK_1 = {
    "phases": {"products": 5.0, "attention": 1.5, "optimizer": 0.4, "gradient_norm": 0.1, "evaluation": 0.5,
               "other": 0.01, "data": 0.01, "records": 0.18},
    "communication": {"tp_forward": 1.0, "dp_gradient": 1.3},
    "waiting": {"tp_forward": 0.0, "dp_gradient": 0.0},
}  # fmt: skip


def scaled(wall, factor):
    return {member: {name: factor * seconds for name, seconds in part.items()} for member, part in wall.items()}


def of_start(step):
    """The line of step 0 has the start of the run, which is no part of the numbers."""
    return [{"phases": {"other": 1000.0}, "communication": {}}] * 2 if step == 0 else [RANK_0, RANK_1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    spec = copy.deepcopy(synthetic.BASE) | {"parallel": {"tensor": 2, "data": 2, "bucket_bytes": 65536}}
    out = tmp_path_factory.mktemp("wall")
    path = out / synthetic.write_run(out, spec)
    synthetic.add_wall_seconds(path, of_start)
    return path


@pytest.fixture(scope="module")
def found(folder):
    (one,) = wall_time.breakdowns(droptest.load(folder))
    return {part.part: part for part in one.parts}


def test_shares_are_means_over_ranks_after_step_0_and_waiting_is_no_transfer(found):
    expected = {
        "compute": (0.4 + 0.65) / 2, "waiting": 0.25 / 2, "transfer tp_forward": 0.1,
        "transfer dp_gradient": 0.13, "optimizer": 0.05, "evaluation": 0.05, "records": 0.0175, "other": 0.0015,
        "data": 0.001,
    }  # fmt: skip
    assert {name: part.share for name, part in found.items()} == pytest.approx(expected)
    assert sum(part.share for part in found.values()) == pytest.approx(1)
    assert (found["waiting"].least, found["waiting"].most) == pytest.approx((0, 0.25))


def test_seconds_of_a_step_count_every_line_once(found):
    # 20 lines of 10 seconds over 200 steps.
    assert found["transfer tp_forward"].step_seconds == pytest.approx(20 * 1.0 / 200)
    assert sum(part.step_seconds for part in found.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("share", "severity"),
    [(0.2, "high"), (0.1999, "medium"), (0.1, "medium"), (0.0999, "low"), (0.03, "low"), (0.0299, "")],
)
def test_severity_has_the_thresholds_of_the_docs(share, severity):
    assert wall_time.severity_of("transfer dp_gradient", share) == severity
    assert wall_time.severity_of("compute", share) == ""


def test_bottlenecks_say_what_would_help(found):
    assert [name for name, part in found.items() if part.severity] == [
        "transfer dp_gradient", "waiting", "transfer tp_forward", "optimizer", "evaluation",
    ]  # fmt: skip
    assert found["waiting"].severity == "medium" and found["optimizer"].severity == "low"
    assert "the others wait for rank 1, which waits 0.0 % of its time" in found["waiting"].help
    assert "parallel.bucket_bytes (now 65536)" in found["transfer dp_gradient"].help
    assert "parallel.tensor (now 2)" in found["transfer tp_forward"].help
    assert "validation.every_steps (now 50)" in found["evaluation"].help
    assert found["records"].help == ""


def test_ranks_that_wait_in_turns_have_another_advice(tmp_path):
    path = tmp_path / synthetic.write_run(tmp_path, synthetic.BASE)
    wall = {"phases": {"products": 6.0}, "communication": {"tp_forward": 4.0}, "waiting": {"tp_forward": 3.0}}
    synthetic.add_wall_seconds(path, lambda _: [wall, wall])
    (one,) = wall_time.breakdowns(droptest.load(path))
    (waiting,) = [part for part in one.parts if part.part == "waiting"]
    assert waiting.severity == "high" and waiting.help.startswith(
        "the slowest rank changes, which suggests too few cores: give each of the 2 ranks 1 core, "
    )


def test_a_part_that_a_rank_does_not_have_is_no_time_of_it(tmp_path):
    path = tmp_path / synthetic.write_run(tmp_path, synthetic.BASE)
    synthetic.add_wall_seconds(path, lambda _: [
        {"phases": {"products": 6.0, "checkpoint": 4.0}, "communication": {}},
        {"phases": {"products": 10.0}, "communication": {}},
    ])  # fmt: skip
    (one,) = wall_time.breakdowns(droptest.load(path))
    (checkpoint,) = [part for part in one.parts if part.part == "checkpoint"]
    assert (checkpoint.share, checkpoint.least, checkpoint.most) == pytest.approx((0.2, 0, 0.4))


def test_the_figure_draws_the_shares_of_each_rank(folder):
    data = plots.data("time_shares", droptest.load(folder))
    shares = data.pivot_table(index="row", columns="part", values="share")
    assert shares.loc["rank 0", "waiting"] == pytest.approx(0.25)
    assert shares.loc["rank 1", "compute"] == pytest.approx(0.65)
    assert shares.loc["rank 0", "other"] == pytest.approx(0.003)  # with data, which is small everywhere
    assert "data" not in shares and shares.sum(axis=1).tolist() == pytest.approx([1, 1])
    titles = list(dict.fromkeys(data["title"]))
    bars = plots.draw("time_shares", droptest.load(folder)).axes[0].containers
    assert [bar.get_label() for bar in bars] == titles
    for title, bar in zip(titles, bars, strict=True):
        expected = data[data["title"] == title]["share"].tolist()
        assert [patch.get_width() for patch in bar] == pytest.approx([100 * share for share in expected])
        before = data[data["title"].isin(titles[: titles.index(title)])].groupby("row")["share"].sum()
        assert [patch.get_x() for patch in bar] == pytest.approx([100 * before.get(f"rank {r}", 0) for r in (0, 1)])
    (panel,) = interactive.figure_of("time_shares", data)["panels"]
    drawn = {curve["name"]: curve["x"] for curve in panel["curves"]}
    assert drawn["waiting for the slowest rank"] == pytest.approx([25, 0])
    assert {curve["kind"] for curve in panel["curves"]} == {"stack"}


def test_a_sweep_has_a_row_for_each_point_over_its_seeds(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.05)]}, seeds=2)
    for index, run in enumerate(json.loads((folder / "sweep.json").read_text())["runs"]):
        # The second seed of each point has twice the seconds: shares are means over seeds, whatever their length.
        wall = [scaled(RANK_0, 1 + index % 2), RANK_1] if index < 2 else [RANK_1, RANK_1]
        synthetic.add_wall_seconds(folder / run["run_id"], lambda _, wall=wall: wall)
    records = droptest.load(folder)
    lossless, lossy = wall_time.breakdowns(records)
    of = lambda one, name: next(part for part in one.parts if part.part == name)  # noqa: E731
    assert of(lossless, "compute").share == pytest.approx((0.4 + 0.65) / 2)
    assert of(lossy, "compute").share == pytest.approx(0.65)
    assert of(lossless, "waiting").step_seconds == pytest.approx((2.5 + 5) / 2 / 2 * 20 / 200)
    assert list(dict.fromkeys(plots.data("time_shares", records)["row"])) == ["lossless", "Bernoulli, 5 %"]


def test_the_report_has_the_section_the_table_and_the_words(folder, tmp_path, capsys):
    assert main(["report", str(folder), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "where the wall time goes:" in printed and "13.0 %  medium" in printed
    page = (tmp_path / "report.html").read_text()
    assert '<a href="#wall">' in page and 'id="figure-time_shares"' in page and 'id="table-wall_time"' in page
    section = page.split('<h2 id="wall">')[1].split("<h2")[0]
    assert "waiting for the slowest rank: 12.5 % (medium). Advice: the others wait for rank 1" in section
    assert (tmp_path / "plots" / "time_shares.csv").is_file() and (tmp_path / "tables" / "wall_time.csv").is_file()


def test_the_terminal_has_the_three_largest_bottlenecks_and_the_report_all_of_them(folder, tmp_path):
    heading, *lines, rest = wall_time.text_table(droptest.load(folder)).split("\n")
    assert heading == "where the wall time goes:"
    assert [line.split(". Advice: ")[0] for line in lines] == [
        "  13.0 %  medium  exposed transfer, data parallel, gradients",
        "  12.5 %  medium  waiting for the slowest rank",
        "  10.0 %  medium  exposed transfer, tensor parallel, forward",
    ]
    assert ". Advice: the others wait for rank 1, which waits 0.0 % of its time" in lines[1]
    assert rest == "2 more are in the report"
    assert main(["report", str(folder), "--out", str(tmp_path)]) == 0
    table = (tmp_path / "tables" / "wall_time.csv").read_text()
    assert all(f"{title}," in table for title in ("optimizer", "evaluation", "waiting for the slowest rank"))


def test_a_share_that_all_points_have_is_largest_at_none(tmp_path):
    sweep = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.05)]}, seeds=1)
    for run in json.loads((sweep / "sweep.json").read_text())["runs"]:
        synthetic.add_wall_seconds(sweep / run["run_id"], lambda _: [RANK_0, RANK_1])
    text = wall_time.text_table(droptest.load(sweep))
    assert "mean over 2 points:\n  13.0 %  medium" in text and "largest at" not in text


def test_a_sweep_of_many_points_has_no_more_lines_than_one_run(tmp_path):
    losses = [NONE, *(bernoulli(rate / 100) for rate in range(1, 6))]
    sweep = synthetic.write_sweep(tmp_path, {"/network/loss": losses}, seeds=1)
    for place, run in enumerate(json.loads((sweep / "sweep.json").read_text())["runs"]):
        busy = [scaled(RANK_0, 1), RANK_1]
        busy[0]["phases"]["checkpoint"] = 2.0 * place
        synthetic.add_wall_seconds(sweep / run["run_id"], lambda _, busy=busy: busy)
    lines = wall_time.text_table(droptest.load(sweep)).split("\n")
    assert len(lines) == 5 and lines[0] == "where the wall time goes, mean over 6 points:"
    # Rank 0 has 0, 2, ... 10 seconds of 10 more, rank 1 none.
    mean = 100 * sum(2 * place / (10 + 2 * place) / 2 for place in range(6)) / 6
    assert lines[1].startswith(
        f'  {mean:.1f} %  medium  checkpoints; largest at "Bernoulli, 5 %": 25.0 %. Advice: larger '
    )
    assert lines[-1] == "3 more are in the report"


def test_records_without_the_numbers_say_so(tmp_path, capsys):
    folder = tmp_path / synthetic.write_run(tmp_path, synthetic.BASE)
    assert main(["report", str(folder)]) == 0
    assert "where the wall time goes" not in capsys.readouterr().out
    section = (folder / "report.html").read_text().split('<h2 id="wall">')[1].split("<h2")[0]
    assert "an older version recorded the run" in section
    # Records of a version that did not tell waiting apart.
    old = [{k: v for k, v in wall.items() if k != "waiting"} for wall in (RANK_0, RANK_1)]
    synthetic.add_wall_seconds(folder, lambda _: old)
    assert main(["report", str(folder)]) == 0
    section = (folder / "report.html").read_text().split('<h2 id="wall">')[1].split("<h2")[0]
    assert "the records do not tell waiting and transfer apart" in section
