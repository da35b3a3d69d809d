# SPDX-License-Identifier: Apache-2.0
"""Losses that no single rate describes: of single links, and of single steps."""

import math
from pathlib import Path

import pytest
from synthetic import NONE, bernoulli

from droptest import link_losses
from droptest.files import Run
from droptest.loss_model import NO_LOSS, from_spec
from droptest.series import SeriesNamer


def links_rate(links, ranks=4, otherwise=NO_LOSS):
    return link_losses.model(links, otherwise, ranks).loss_rate


def test_the_rate_of_links_is_the_mean_over_all_of_them():
    assert links_rate([{"sources": [3], "loss": bernoulli(0.2)}]) == pytest.approx(0.05)
    assert links_rate([{"sources": [1], "destinations": [2], "loss": bernoulli(0.6)}]) == pytest.approx(0.05)
    # 8 of 12 links join pairs of ranks, 4 are within them.
    assert links_rate([{"between_groups_of": 2, "loss": bernoulli(0.075)}]) == pytest.approx(0.05)
    assert links_rate([{"within_groups_of": 2, "loss": bernoulli(0.3)}]) == pytest.approx(0.1)
    assert links_rate([{"destinations": ["1-3"], "loss": bernoulli("20%")}]) == pytest.approx(0.15)
    # The last override that matches counts; links of none keep the network's own loss.
    both = [{"loss": bernoulli(0.5)}, {"sources": [0], "loss": NONE}]
    assert links_rate(both) == pytest.approx(0.375)
    assert links_rate([{"sources": [0], "loss": NONE}], otherwise=from_spec(bernoulli(0.4))) == pytest.approx(0.3)
    assert link_losses.model([{"loss": NONE}], NO_LOSS, 4).lossless
    assert not link_losses.model([{"loss": {"model": "trace", "file": "x"}}], NO_LOSS, 4).lossless


def test_links_have_words():
    links = [{"sources": [0, "2-3"], "loss": bernoulli("2%")}, {"between_groups_of": 4, "loss": NONE}]
    assert link_losses.words(links) == "from 0, 2-3 Bernoulli 2 %; between groups of 4 lossless"
    assert link_losses.is_links(links)
    assert not link_losses.is_links([]) and not link_losses.is_links([1]) and not link_losses.is_links(None)


def test_outages_and_schedules_have_words():
    windows = [{"from_step": 5, "to_step": 6}, {"from_step": 8, "to_step": 11}]
    outage = from_spec({"model": "outage", "windows": windows})
    assert outage.label == "outage in step 5, 8 to 10" and not outage.lossless
    assert from_spec({"model": "outage", "windows": windows, "otherwise": NONE}).label == outage.label
    assert from_spec({"model": "outage", "windows": windows, "otherwise": bernoulli(0.01)}).label.endswith(
        "; else Bernoulli 1 %"
    )
    phases = [{"from_step": 1, "loss": bernoulli(0.1)}, {"from_step": 51, "loss": NONE}]
    assert (
        from_spec({"model": "schedule", "phases": phases}).label == "from step 1 Bernoulli 10 %; from step 51 lossless"
    )
    assert from_spec({"model": "schedule"}).label == "schedule"


def run_of(run_id, point, half, configured_rate=None):
    """A finished run with one class."""
    statistics = {}
    if configured_rate is not None:
        halves = {name: {"configured_rate": configured_rate} for name in ("reduce", "gather")}
        statistics = {"classes": {"tp_forward": {"halves": halves}}}
    long_run = {"model": half["loss"]["model"], "loss_rate": 0.0, "mean_burst_packets": None}
    return Run(
        run_id=run_id, path=Path(run_id), point=point, seeds=(1, 1, 1), status="completed",
        spec={"parallel": {"tensor": 4}, "network": {"classes": {"tp_forward": {"reduce": half, "gather": half}}}},
        summary={"loss": {"tp_forward": {"reduce": long_run, "gather": long_run}}}, loss_statistics=statistics,
    )  # fmt: skip


def test_runs_that_lose_on_some_links_or_in_some_steps_are_not_lossless():
    links = [{"sources": [3], "loss": bernoulli(0.2)}]
    outage = {"model": "outage", "windows": [{"from_step": 2, "to_step": 3}]}
    runs = [
        run_of("a", {"/network/links": []}, {"loss": NONE}),
        run_of("b", {"/network/links": links}, {"loss": NONE, "links": links}, 0.05),
        run_of("c", {"/network/loss": outage}, {"loss": outage}, 0.03),
        run_of("d", {"/network/loss": outage | {"otherwise": bernoulli(0.01)}}, {"loss": outage}),
    ]
    namer = SeriesNamer(runs)
    assert [namer.lossless(run) for run in runs] == [True, False, False, False]
    assert [namer.rate(run) for run in runs[:3]] == [0, 0.05, 0.03]
    assert math.isnan(namer.rate(runs[3]))  # no statistics have its mean rate
    assert namer.series(runs[0]) == "lossless"
    assert namer.series(runs[1]) == "from 3 Bernoulli 20 %"
    assert namer.series(runs[2]) == "outage in step 2"


def test_a_reliable_network_does_not_make_links_lossless():
    links = [{"sources": [3], "loss": bernoulli(0.2)}]
    run = run_of("b", {"/network/links": links}, {"loss": NONE, "links": links}, 0.0)
    run.spec["time"] = {"retransmission": {"protocol": "selective_repeat"}}
    assert not SeriesNamer([run]).lossless(run)
    assert SeriesNamer([run]).rate(run) == pytest.approx(0.05)


def test_a_deadline_alone_loses_packets_so_other_settings_name_the_series():
    runs = []
    for path in ("ring", "direct"):
        run = run_of(path, {"/network/path": path}, {"loss": NONE})
        run.spec["time"] = {"deadline_microseconds": 50.0}
        runs.append(run)
    assert [SeriesNamer(runs).series(run) for run in runs] == [
        "no loss process, path ring", "no loss process, path direct",
    ]  # fmt: skip
