# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import synthetic
from scipy import stats
from synthetic import NONE, bernoulli

import droptest
from droptest import plots, virtual_time
from droptest.plots import loss_over_time, time_to_target
from droptest.report import write_report
from droptest.virtual_time import Curve, break_even, crossing

RATES = (0.01, 0.02, 0.05, 0.1, 0.14)
TIME = {
    "link": {"latency_microseconds": 5.0, "bandwidth_gbit_per_second": 100.0},
    "compute_milliseconds": 1.0,
    "retransmission": {"protocol": "none"},
}


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    folder = synthetic.write_sweep(
        tmp_path_factory.mktemp("timed"),
        {
            "/network/loss": [NONE, *(bernoulli(rate) for rate in RATES)],
            "/time/retransmission": [{"protocol": "none"}, {"protocol": "selective_repeat"}],
        },
        name="timed",
        time=TIME,
        training={"steps": 400},
        validation={"every_steps": 5},
    )
    return droptest.load(folder)


def test_time_to_target_is_interpolated():
    assert virtual_time.time_to_target([0, 10, 20], [3.0, 2.0, 1.0], 1.75) == pytest.approx(12.5)
    assert virtual_time.time_to_target([0, 10, 20], [3.0, 2.0, 1.0], 2.0) == 10
    assert virtual_time.time_to_target([5, 10], [1.0, 2.0], 1.5) == 5
    assert virtual_time.time_to_target([0, 10, 20], [3.0, 2.0, 1.0], 0.5) == math.inf
    # The first crossing counts, and values that are not finite are left out.
    assert virtual_time.time_to_target([0, 1, 2, 3], [3.0, 1.0, 3.0, 1.0], 2.0) == 0.5
    assert virtual_time.time_to_target([0, 1, 2], [3.0, math.nan, 1.0], 2.0) == 1


def test_crossings_are_interpolated_over_the_logarithm_of_the_rate():
    assert crossing([0.01, 0.1], [-1.0, 1.0]) == pytest.approx(math.sqrt(0.001))
    assert crossing([0.01, 0.1], [-1.0, 3.0]) == pytest.approx(0.01 * 10**0.25)
    assert crossing([0.01, 0.1], [1.0, 2.0]) == 0
    assert crossing([0.01, 0.1], [-1.0, -2.0]) == math.inf
    assert crossing([0.01, 0.1], [-1.0, 0.0]) == math.inf
    # Never reached at 10 %: nothing says how far beyond.
    assert crossing([0.01, 0.1], [-1.0, math.inf]) == pytest.approx(math.sqrt(0.001))
    # The last change of sign counts.
    assert crossing([0.01, 0.1, 1.0], [1.0, -1.0, 1.0]) == pytest.approx(math.sqrt(0.1))


def curve(series, reliable, times):
    return Curve(series, reliable, "same", times)


def test_break_even_is_exact_where_the_advantage_is_linear():
    # D = 2 ln(rate / 3 %) + noise of the seed, whose mean is zero.
    noise = {1: -0.2, 2: 0.0, 3: 0.2}
    rates = (0.01, 0.02, 0.05, 0.2)
    tolerant = curve("t", False, {r: {s: (r / 0.03) ** 2 * math.exp(e) for s, e in noise.items()} for r in rates})
    reliable = curve("r", True, {r: dict.fromkeys(noise, 1.0) for r in rates})
    result = break_even(tolerant, reliable)
    assert result.rate == pytest.approx(0.03)
    # Half width t(2) s / sqrt(3) of the mean of D, over its slope of 2.
    half = stats.t.ppf(0.975, 2) * 0.2 / math.sqrt(3) / 2
    assert result.low == pytest.approx(0.03 * math.exp(-half))
    assert result.high == pytest.approx(0.03 * math.exp(half))
    assert "break-even at 3 %" in virtual_time.in_words(result)


def test_break_even_pairs_seeds_and_says_what_it_cannot():
    # A seed that is slow on both networks says nothing: only the ratio counts.
    slow = {1: 1.0, 2: 50.0}
    tolerant = curve("t", False, {r: {s: f * r / 0.03 for s, f in slow.items()} for r in (0.01, 0.1)})
    reliable = curve("r", True, {r: dict(slow) for r in (0.01, 0.1)})
    result = break_even(tolerant, reliable)
    assert (result.rate, result.low, result.high) == pytest.approx((0.03, 0.03, 0.03))
    one_seed = break_even(curve("t", False, {0.01: {1: 1.0}}), curve("r", True, {0.01: {1: 2.0}}))
    assert one_seed.rate == math.inf and math.isnan(one_seed.low)
    assert "faster or equal at the highest rate" in virtual_time.in_words(one_seed)
    never = break_even(curve("t", False, {0.01: {1: 9.0, 2: 9.0}, 0.1: {1: math.inf, 2: 9.0}}),
                       curve("r", True, {0.01: {1: 10.0, 2: 10.0}, 0.1: {1: 10.0, 2: 10.0}}))  # fmt: skip
    # Somewhere between the rate at which all got there faster and that at which one never did.
    assert (never.rate, never.low, never.high) == pytest.approx((math.sqrt(0.001), 0.01, 0.1))
    slower = break_even(curve("t", False, {0.01: {1: 3.0}}), curve("r", True, {0.01: {1: 2.0}}))
    assert slower.rate == 0
    assert "not faster at any rate from" in virtual_time.in_words(slower)


def test_records_of_known_times_give_their_break_even(timed):
    assert virtual_time.has_virtual_time(timed)
    target = virtual_time.default_target(timed)
    assert target == pytest.approx(1.05 * 1.2)
    every = virtual_time.curves(timed, target)
    assert [c.reliable for c in every] == [False, True]
    tolerant, reliable = every
    steps = (3 - target) / 0.01
    assert tolerant.times[0.0] == pytest.approx(dict.fromkeys((1, 2, 3), steps))
    for rate in RATES:
        assert reliable.times[rate] == pytest.approx(dict.fromkeys((1, 2, 3), steps * (1 + 5 * rate)))
    assert tolerant.times[0.01][3] == pytest.approx(steps / (1 - 40 * 0.01**2) / 0.99)
    assert tolerant.times[0.14] == dict.fromkeys((1, 2, 3), math.inf)  # the steps are too few
    assert tolerant.interval(0.14).mean == math.inf
    [result] = virtual_time.break_evens(every)
    # D is ln(1 / (1 - 40 x^2) / (1 + 5 x)) but for the seeds' factors: -0.1178 at 5 %, +0.1054 at 10 %.
    low, high = (math.log(1 / (1 - 40 * x * x) / (1 + 5 * x)) for x in (0.05, 0.1))
    assert result.advantages[0.05].mean == pytest.approx(low, abs=1e-4)
    assert result.rate == pytest.approx(0.05 * 2 ** (-low / (high - low)), rel=1e-3)
    assert 0.05 < result.low < result.rate < result.high < 0.1


def test_figures_and_report_show_virtual_time(timed, tmp_path):
    figure = plots.draw("time_to_target", timed)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert any("break-even at" in label for label in labels)
    figure = plots.draw("loss_over_time", timed)
    assert "virtual time (s)" in {ax.get_xlabel() for ax in figure.axes}
    written = write_report(timed, tmp_path)
    text = written.report.read_text(encoding="utf-8")
    assert "Virtual time" in text and "break-even at" in text and "not all seeds" in text
    assert (tmp_path / "plots" / "time_to_target.png").is_file()


def test_records_without_a_clock_say_nothing_of_time(mixed, tmp_path):
    records = droptest.load(mixed)
    assert not virtual_time.has_virtual_time(records)
    for module in (loss_over_time, time_to_target):
        with pytest.raises(plots.NotMeant):
            module.data(records)
    written = write_report(records, tmp_path)
    text = written.report.read_text(encoding="utf-8")
    assert "irtual" not in text
    assert not any("time" in warning.replace("wall time", "") for warning in written.warnings), written.warnings
    assert not (tmp_path / "plots" / "time_to_target.png").exists()


def test_a_deadline_makes_a_run_without_loss_lossy(tmp_path):
    spec = synthetic.BASE | {"name": "late", "time": TIME | {"deadline_microseconds": 5.0}}
    synthetic.write_run(tmp_path / "late", spec)
    assert not droptest.load(tmp_path / "late").runs["lossless"].any()


def test_step_time_is_the_clock_over_the_steps(timed):
    data = plots.data("step_time", timed)
    assert len(data) == 2 * (1 + len(RATES)) and (data["seeds"] == 3).all()
    assert data["late_rate"].isna().all()
    for row in data.itertuples():
        # A step takes 1 s, and on a reliable network 5 s more for a loss rate of 1 (synthetic.py).
        reliable = "selective" in row.series and not row.lossless
        assert row.mean == pytest.approx(1 + 5 * row.loss_rate * reliable, rel=1e-6), row.name
        assert row.low == pytest.approx(row.mean) == row.high


def test_rows_without_a_loss_process_say_how_many_packets_came_late(tmp_path):
    """A deadline that 27 % of the packets miss is no lossless run; one that no packet misses is."""
    times = [TIME | {"deadline_microseconds": 60.0}, TIME | {"deadline_microseconds": 1e6}]
    cross = {"/time": times, "/network/path": ["ring", "direct"]}
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=2, name="late"))
    assert set(records.time["late_rate"]) == {0.27, 0.0}
    table = droptest.summary_table(records)
    assert table["late"].tolist() == ["0.0000 %", "27.0000 %", "27.0000 %"]
    assert table["loss rate"].tolist() == ["0 %", "-", "-"]
    assert table["series"].str.contains("lossless").tolist() == [True, False, False]
    assert records.runs.loc[~records.runs["lossless"], "twin"].notna().all()
    data = plots.data("step_time", records)
    assert data["late_rate"].tolist() == [0.0, 0.27, 0.27]
    for figure in (plots.draw("step_time", records), plots.draw("final_loss", records)):
        names = [text.get_text().replace("\N{NO-BREAK SPACE}", " ") for text in figure.axes[0].get_yticklabels()]
        assert sorted("lossless" in name for name in names) == [False, False, True]
        assert all(("lossless" in name) != name.endswith(" 27 % late") for name in names)


def test_late_packets_count_on_the_axis_of_the_loss_rate(tmp_path):
    losses = [bernoulli(0.1), bernoulli(0.2)]
    spec = {"time": TIME | {"deadline_microseconds": 60.0}}
    records = droptest.load(synthetic.write_sweep(tmp_path, {"/network/loss": losses}, seeds=2, name="both", **spec))
    data = plots.data("final_loss", records)
    assert data["missing_rate"].tolist() == pytest.approx([1 - 0.9 * 0.73, 1 - 0.8 * 0.73])
    assert data["name"].tolist() == ["Bernoulli, 10 % lost, 27 % late", "Bernoulli, 20 % lost, 27 % late"]
    line = plots.draw("final_loss", records).axes[0].containers[0].lines[0]
    assert line.get_xdata() == pytest.approx([100 - 65.7, 100 - 58.4])
