# SPDX-License-Identifier: Apache-2.0
"""Losses that no single rate describes: of single links, and of single steps."""

import math
from pathlib import Path

import pytest
from synthetic import NONE, bernoulli

from droptest import class_links, link_losses
from droptest.files import Run
from droptest.loss_model import NO_LOSS, from_spec
from droptest.series import SeriesNamer


def links_rate(links, ranks=4, otherwise=NO_LOSS):
    pairs = class_links.links_of("tp_forward", "reduce", {"parallel": {"tensor": ranks}})
    return link_losses.model(links, otherwise, pairs).loss_rate


def test_the_rate_of_links_is_the_mean_over_all_of_them():
    assert links_rate([{"sources": [3], "loss": bernoulli(0.2)}]) == pytest.approx(0.05)
    assert links_rate([{"ranks": [3], "loss": bernoulli(0.2)}]) == pytest.approx(0.2 * 6 / 12)
    assert links_rate([{"sources": [1], "destinations": [2], "loss": bernoulli(0.6)}]) == pytest.approx(0.05)
    # 8 of 12 links join pairs of ranks, 4 are within them.
    assert links_rate([{"between_groups_of": 2, "loss": bernoulli(0.075)}]) == pytest.approx(0.05)
    assert links_rate([{"within_groups_of": 2, "loss": bernoulli(0.3)}]) == pytest.approx(0.1)
    assert links_rate([{"destinations": ["1-3"], "loss": bernoulli("20%")}]) == pytest.approx(0.15)
    # The last override that matches counts; links of none keep the network's own loss.
    both = [{"loss": bernoulli(0.5)}, {"sources": [0], "loss": NONE}]
    assert links_rate(both) == pytest.approx(0.375)
    assert links_rate([{"sources": [0], "loss": NONE}], otherwise=from_spec(bernoulli(0.4))) == pytest.approx(0.3)
    pairs = class_links.links_of("tp_forward", "reduce", {"parallel": {"tensor": 4}})
    assert link_losses.model([{"loss": NONE}], NO_LOSS, pairs).lossless
    assert not link_losses.model([{"loss": {"model": "trace", "file": "x"}}], NO_LOSS, pairs).lossless
    # Of a program whose ranks are not known.
    assert math.isnan(links_rate([{"loss": bernoulli(0.1)}], ranks=1))
    assert link_losses.model([{"loss": NONE}], NO_LOSS, ()).lossless


def test_a_traffic_class_has_the_links_of_its_groups():
    """The layout of docs/parallelism.md: pipeline, sequence, tensor, data, or as the spec orders them."""
    layout = {"data": 2, "tensor": 2, "pipeline": 2}
    both = lambda *pairs: sorted((*pairs, *((d, s) for s, d in pairs)))  # noqa: E731
    links = lambda name, **more: class_links.links_of(name, "gather", {"parallel": layout | more})  # noqa: E731
    assert links("tp_forward") == links("tp_recomputation") == both((0, 2), (1, 3), (4, 6), (5, 7))
    assert links("dp_gradient") == links("parameter_gather") == both((0, 4), (1, 5), (2, 6), (3, 7))
    assert links("embedding_gradient") == both((0, 1), (2, 3), (4, 5), (6, 7))
    assert links("pp_activation") == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert links("pp_gradient") == [(1, 0), (3, 2), (5, 4), (7, 6)]
    order = ["tensor", "sequence", "data", "pipeline"]
    assert links("tp_forward", order=order) == both((0, 1), (2, 3), (4, 5), (6, 7))
    assert links("pp_activation", order=order) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    layout = {"pipeline": 4}
    assert links("pp_activation") == [(0, 1), (1, 2), (2, 3)]
    assert links("embedding_gradient") == [(0, 3), (3, 0)]
    assert links("pp_activation", chunks=2) == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert links("pp_gradient", chunks=2) == [(0, 3), (1, 0), (2, 1), (3, 2)]
    assert len(class_links.links_of("control", "gather", {"parallel": {"data": 3}})) == 6


def test_a_link_to_the_point_of_aggregation_has_a_source_only():
    spec = {"parallel": {"data": 4}, "network": {"classes": {"dp_gradient": {"path": "contribution"}}}}
    pairs = class_links.links_of("dp_gradient", "reduce", spec)
    rate = lambda *links: link_losses.model(list(links), NO_LOSS, pairs).loss_rate  # noqa: E731
    assert rate({"sources": [3], "loss": bernoulli(0.2)}) == pytest.approx(0.05)
    assert rate({"destinations": [1], "loss": bernoulli(0.2)}) == 0


@pytest.mark.parametrize("network", [{"path": "tree"}, {"path": "direct", "sized_paths": [{"path": "ring"}]}])
def test_a_rate_over_links_that_are_not_known_is_not_known(network):
    spec = {"parallel": {"tensor": 4}, "network": {"classes": {"tp_forward": network}}}
    pairs = class_links.links_of("tp_forward", "reduce", spec)
    assert math.isnan(link_losses.model([{"sources": [3], "loss": bernoulli(0.2)}], NO_LOSS, pairs).loss_rate)


def test_links_have_words():
    links = [{"sources": [0, "2-3"], "loss": bernoulli("2%")}, {"between_groups_of": 4, "loss": NONE}]
    assert link_losses.words(links) == "from 0, 2-3 Bernoulli 2 %; between groups of 4 no loss"
    assert link_losses.is_links(links)
    assert not link_losses.is_links([]) and not link_losses.is_links([1]) and not link_losses.is_links(None)


def test_outages_and_schedules_have_words():
    windows = [{"from_step": 5, "to_step": 6}, {"from_step": 8, "to_step": 11}]
    outage = from_spec({"model": "outage", "windows": windows})
    assert outage.label == "outage in steps 5, 8 to 10" and not outage.lossless
    assert from_spec({"model": "outage", "windows": windows, "otherwise": NONE}).label == outage.label
    assert from_spec({"model": "outage", "windows": windows, "otherwise": bernoulli(0.01)}).label.endswith(
        "; else Bernoulli 1 %"
    )
    phases = [{"from_step": 1, "loss": bernoulli(0.1)}, {"from_step": 51, "loss": NONE}]
    assert (
        from_spec({"model": "schedule", "phases": phases}).label == "from step 1 Bernoulli 10 %; from step 51 no loss"
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


def class_run(run_id, parallel, name, links, configured_rate=None):
    """A run whose class loses packets on some links only, with the summary that the program writes of it."""
    half = {"loss": NONE, "fill": "zero"} | ({"links": links} if links else {})
    spec = {"parallel": parallel, "network": {"classes": {name: {"reduce": half, "gather": half}} if links else {}}}
    none = {"model": "none", "loss_rate": 0.0, "mean_burst_packets": None}
    counts = {"configured_rate": configured_rate, "lost": 9}
    statistics = {"classes": {name: {"halves": {"reduce": counts, "gather": counts}}}}
    return Run(
        run_id=run_id, path=Path(run_id), point={"/network/links": links}, seeds=(1, 1, 1), status="completed",
        spec=spec, summary={"loss": {name: {"reduce": none, "gather": none}} if links else {}},
        loss_statistics=statistics if configured_rate is not None else {},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("parallel", "name", "links", "rate"),
    [
        ({"data": 8, "tensor": 1}, "dp_gradient", [{"sources": [7], "loss": bernoulli(0.1)}], 0.0125),
        ({"pipeline": 4, "tensor": 1}, "pp_activation", [{"sources": [1], "loss": bernoulli(0.3)}], 0.1),
        ({"pipeline": 4, "tensor": 1}, "pp_gradient", [{"destinations": [0], "loss": bernoulli(0.3)}], 0.1),
        ({"pipeline": 3, "tensor": 1}, "embedding_gradient", [{"sources": [2], "loss": bernoulli(0.1)}], 0.05),
        ({"sequence": 2, "tensor": 1}, "sequence_forward", [{"sources": [0], "loss": bernoulli(0.1)}], 0.05),
    ],
)
def test_links_of_every_class_make_a_run_lossy(parallel, name, links, rate):
    clean = class_run("a", parallel, name, [])
    planned, finished = (class_run(run_id, parallel, name, links, r) for run_id, r in (("b", None), ("c", 0.02)))
    namer = SeriesNamer([clean, planned, finished])
    assert [namer.lossless(run) for run in (clean, planned, finished)] == [True, False, False]
    assert namer.rate(planned) == pytest.approx(rate), "the mean over the links of the class"
    assert namer.rate(finished) == pytest.approx(0.02), "that of the packets that were sent"
    assert "lossless" not in namer.series(planned) and namer.series(clean) == "lossless"


def test_links_on_which_a_class_sends_nothing_leave_it_lossless():
    links = [{"sources": [3], "loss": bernoulli(0.3)}]  # the last stage sends no activations
    run = class_run("a", {"pipeline": 4}, "pp_activation", links)
    assert SeriesNamer([run]).lossless(run)


def counted(run, **counts):
    run.loss_statistics = {"classes": {"tp_forward": {"halves": {"reduce": counts}}}}
    return run


def test_a_run_with_missing_late_or_compressed_packets_is_not_lossless():
    def clean():
        return run_of("a", {}, {"loss": NONE})

    lost, repaired, late, compressed = clean(), clean(), clean(), clean()
    counted(lost, lost=3)
    counted(repaired, lost=3, recovery={"repaired": 3, "residual": 0})
    late.summary["time"] = {"late_packets": 2}
    compressed.spec["network"]["classes"]["tp_forward"]["compression"] = {"kind": "int4"}
    namer = lambda run: SeriesNamer([run])  # noqa: E731
    assert namer(clean()).lossless(clean()) and namer(repaired).lossless(repaired)
    for run in (lost, late, compressed):
        assert not namer(run).lossless(run) and "lossless" not in namer(run).series(run)
        assert "lossless" not in namer(run).model_label(run)
    assert [namer(run).loses_nothing(run) for run in (lost, late, compressed)] == [False, False, True]
    earlier = clean()
    earlier.loss_statistics["earlier_epochs"] = [counted(clean(), lost=1).loss_statistics]
    assert not namer(earlier).lossless(earlier), "a packet was missing in another layout"


def test_a_run_whose_losses_were_all_repaired_is_reliable():
    run = run_of("a", {}, {"loss": bernoulli(0.1)})
    run.summary["loss"]["tp_forward"]["reduce"]["loss_rate"] = 0.1
    reliable = lambda **counts: SeriesNamer([run]).reliable(counted(run, **counts))  # noqa: E731
    assert reliable(lost=5, recovery={"repaired": 5, "residual": 0})
    assert not reliable(lost=5, recovery={"repaired": 4, "residual": 1})
    assert not reliable(lost=5) and not reliable(lost=0, recovery={"repaired": 0, "residual": 0})
    run.summary["time"] = {"late_packets": 1}
    assert not reliable(lost=5, recovery={"repaired": 5, "residual": 0})


def test_a_reliable_network_does_not_make_links_lossless():
    links = [{"sources": [3], "loss": bernoulli(0.2)}]
    run = run_of("b", {"/network/links": links}, {"loss": NONE, "links": links}, 0.0)
    run.spec["time"] = {"retransmission": {"protocol": "selective_repeat"}}
    assert not SeriesNamer([run]).lossless(run)
    assert SeriesNamer([run]).rate(run) == pytest.approx(0.05)


@pytest.mark.parametrize(
    "section", [{"time": {"deadline_microseconds": 50.0}}, {"outer": {"every_steps": 4, "quorum": 1}}]
)
def test_late_packets_of_finished_runs_are_counted_and_those_of_others_expected(section):
    def runs(**state):
        found = [run_of(path, {"/network/path": path}, {"loss": NONE}) for path in ("ring", "direct")]
        for run in found:
            run.spec |= section
            for name, value in state.items():
                setattr(run, name, value)
        return found

    def series(found):
        namer = SeriesNamer(found)
        assert len({namer.lossless(run) for run in found}) == 1
        return [namer.series(run) for run in found]

    lossy = ["no loss process, path ring", "no loss process, path direct"]
    assert series(runs(status="unfinished", summary={})) == lossy, "packets may come late"
    assert series(runs(summary={"time": {"late_packets": 1}})) == lossy
    assert series(runs(summary={"time": {"late_packets": 0}})) == ["lossless"] * 2, "no packet came late"


def losses_in_places(loss, forward=None, links=()):
    """A run with a loss of all halves, of the reduce half of one class, and of single links."""
    point = {"/network/loss": loss} | ({"/network/classes/tp_forward/reduce/loss": forward} if forward else {})
    more = {"links": list(links)} if links else {}
    halves = {"reduce": {"loss": forward or loss} | more, "gather": {"loss": loss} | more}
    spec = {"parallel": {"tensor": 2}, "network": {"classes": {"tp_forward": halves}}}
    text = str(point)
    return Run(run_id=text, path=Path(text), point=point, seeds=(1, 1, 1), spec=spec)


def series_of(runs):
    namer = SeriesNamer(runs)
    return [namer.series(run) for run in runs]


def test_a_run_with_a_loss_elsewhere_has_a_loss_process():
    links = [{"sources": [1], "loss": bernoulli(0.3)}]
    runs = [losses_in_places(loss, links=links) for loss in (NONE, bernoulli(0.1))]
    assert series_of(runs) == ["no loss elsewhere", "Bernoulli"]
    assert [SeriesNamer(runs).rate(run) for run in runs] == pytest.approx([0.15, 0.2])
    both = [losses_in_places(loss, forward) for loss in (NONE, bernoulli(0.1)) for forward in (NONE, bernoulli(0.1))]
    assert series_of(both) == [
        "lossless", "no loss elsewhere, tensor parallel forward reduce Bernoulli",
        "Bernoulli, tensor parallel forward reduce no loss", "Bernoulli, tensor parallel forward reduce Bernoulli",
    ]  # fmt: skip


def test_a_rate_of_zero_in_a_place_is_no_loss():
    runs = [losses_in_places(bernoulli(0.1), forward) for forward in (bernoulli(0), bernoulli(0.1))]
    assert series_of(runs)[0] == "tensor parallel forward reduce no loss"
    assert link_losses.words([{"sources": [1], "loss": bernoulli(0)}]) == "from 1 no loss"
