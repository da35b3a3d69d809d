# SPDX-License-Identifier: Apache-2.0
"""Which runs make one curve: the points of a sweep, split into the loss rate (x) and everything else (the series).

Nouns. A *leaf* is a pointer of a point with a value that is no object; a loss process counts as one leaf. A leaf is
*varied* where its value differs between runs. The *rate* of a run is the largest loss rate among the (class, half)
pairs whose rate varies over the runs. The *series* of a run is the text of all its varied leaves but seed and rate.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from droptest import class_links, link_losses, loss_model, words
from droptest.files import Run, object_of
from droptest.library import HALVES
from droptest.loss_model import NO_LOSS, LossModel, percent, probability
from droptest.pointers import canonical, short_names, within, without
from droptest.twins import compressions, omits, transforms, without_effect

KNOWN_POINTERS = {
    "/parallel/tensor": "TP",
    "/model/preset": "model",
    "/network/fill": "fill",
    "/network/path": "path",
    "/network/consistency": "consistency",
    "/backend/name": "backend",
    "/validation/network": "validation",
    "/network/recovery/parity/data": "data packets",
    "/network/recovery/parity/parity": "parity packets",
    "/network/recovery/hadamard/block": "Hadamard block",
    "/network/recovery/retransmit/protocol": "retransmission",
    "/network/recovery/protect/layers": "protected layers",
    "/time/retransmission/protocol": "retransmission",
    "/training/precision": "precision",
    "/training/precision/compute": "compute precision",
    "/training/precision/message": "message precision",
    "/training/precision/master": "master precision",
}
RATE_KEYS = ("loss_rate", "p_good_to_bad")
ABSENT = canonical(None)  # the text of a value that a run does not have
LOSSLESS = "lossless"
NO_PROCESS = "no loss process"  # but packets may come too late, or messages are compressed or transformed
NO_LOSS_ELSEWHERE = "no loss elsewhere"  # a class, half or link has a loss of its own
# Members that make a difference only to runs that lose packets.
OF_LOSSY_RUNS = ("/network", "/numerics_version", "/validation/network")


def is_loss(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("model"), str)


def leaves(point: dict[str, Any]) -> dict[str, Any]:
    """The leaves of a point: {"/network": {"fill": "zero"}} has "/network/fill"."""
    found: dict[str, Any] = {}

    def visit(pointer: str, value: Any) -> None:
        if isinstance(value, dict) and value and not is_loss(value):
            for key in value:
                visit(f"{pointer}/{key}", value[key])
        else:
            found[pointer] = value

    for pointer, value in point.items():
        visit(pointer, value)
    return {pointer: value for pointer, value in found.items() if not f"{pointer}/".startswith(("/seed/", "/seeds/"))}


def loss_models(run: Run) -> dict[tuple[str, str], LossModel]:
    """The loss process of each (class, half) of a run; from the point where the run has no files yet."""
    summary = loss_model.of_summary(object_of(run.summary.get("loss")))
    spec = loss_model.of_network(object_of(run.spec.get("network")))
    linked = _of_links(run, spec)
    if summary:
        # The spec has the parameters, the summary the rates: together they name the process and its rate.
        named = {key: replace(m, label=spec[key].label) if key in spec else m for key, m in summary.items()}
        return _with_rates_of_run(named | linked, run)
    if spec or run.spec or run.summary:
        return spec | linked
    models = {}
    for pointer, value in leaves(run.point).items():
        if is_loss(value):
            models["point", pointer] = loss_model.from_spec(value)
        elif pointer.rsplit("/", 1)[-1] == "loss_rate":
            models["point", pointer] = LossModel("unknown", probability(value), math.nan, "unknown loss")
    return models


def _with_rates_of_run(models: dict[tuple[str, str], LossModel], run: Run) -> dict[tuple[str, str], LossModel]:
    """Where the process alone does not say the rate, the one that the run's packets had to expect."""
    known = dict(models)
    if object_of(object_of(run.spec.get("time")).get("retransmission")).get("protocol", "none") != "none":
        return known  # a reliable network repeats its lost packets, and does not count them
    classes = object_of(run.loss_statistics.get("classes"))
    for (name, half), model in models.items():
        if model.model not in (*loss_model.CHANGING, "links"):
            continue
        counted = object_of(object_of(object_of(classes.get(name)).get("halves")).get(half))
        if isinstance(counted.get("configured_rate"), int | float):
            known[name, half] = replace(model, loss_rate=float(counted["configured_rate"]))
    return known


def _of_links(run: Run, spec: dict[tuple[str, str], LossModel]) -> dict[tuple[str, str], LossModel]:
    """Those (class, half) of a run whose links have losses of their own."""
    found = {}
    for name, settings in object_of(object_of(run.spec.get("network")).get("classes")).items():
        for half in HALVES:
            links = object_of(object_of(settings).get(half)).get("links")
            if link_losses.is_links(links):
                pairs = class_links.links_of(name, half, run.spec) if run.spec.get("parallel") else ()
                found[name, half] = link_losses.model(links, spec.get((name, half), NO_LOSS), pairs)
    return found


def is_lossless(models: dict[tuple[str, str], LossModel]) -> bool:
    return all(m.lossless for m in models.values())


def has_deadline(run: Run) -> bool:
    """Whether packets of the run may be lost for coming late."""
    return "deadline_microseconds" in object_of(run.spec.get("time"))


def may_miss_packets_by_time(run: Run) -> bool:
    """Whether packets are missing because they were late: of a finished run by its counts. Of a run without counts,
    whether they may be: by a deadline, or by the quorum of an outer step."""
    if run.status in ("completed", "diverged"):
        return late_packets(run) > 0
    return has_deadline(run) or "quorum" in object_of(run.spec.get("outer"))


def late_packets(run: Run) -> int:
    return object_of(run.summary.get("time")).get("late_packets", 0)


def compresses(run: Run) -> bool:
    """Whether messages are compressed, so that a run without loss depends on network settings."""
    return bool(compressions(run.spec))


def _halves_counted(run: Run) -> list[dict[str, Any]]:
    """The counts of each class and half of a finished run, those of earlier layouts too."""
    memberships = run.loss_statistics.get("earlier_epochs")
    parts = [run.loss_statistics, *(memberships if isinstance(memberships, list) else ())]
    classes = [of_class for part in parts for of_class in object_of(object_of(part).get("classes")).values()]
    return [object_of(half) for c in classes for half in object_of(object_of(c).get("halves")).values()]


def missing_packets(run: Run) -> int:
    """Packets whose values their receivers did without: lost and not repaired, or late; 0 where none was counted."""
    residual = sum(
        object_of(half.get("recovery")).get("residual", half.get("lost", 0)) for half in _halves_counted(run)
    )
    return residual + late_packets(run)


def repaired_packets(run: Run) -> int:
    return sum(object_of(half.get("recovery")).get("repaired", 0) for half in _halves_counted(run))


def has_recovery(run: Run) -> bool:
    """Whether the run repairs, spreads, repeats or protects packets."""
    classes = object_of(object_of(run.spec.get("network")).get("classes"))
    protocol = object_of(object_of(run.spec.get("time")).get("retransmission")).get("protocol", "none")
    parts = [object_of(part) for c in classes.values() for part in (c, *(object_of(c).get(h) for h in HALVES))]
    return protocol != "none" or any(part.get("recovery") for part in parts)


def moved_by(runs: Sequence[Run], best_over: Sequence[str]) -> tuple[str, ...]:
    """The pointers of best_over, and those of resolved values that follow them: a final learning rate that the spec
    does not name is a tenth of the learning rate."""
    alike: dict[str, list[dict[str, str]]] = defaultdict(list)
    for run in runs:
        if best_over and run.spec and all(pointer in run.point for pointer in best_over):
            rest = {pointer: value for pointer, value in run.point.items() if pointer not in best_over}
            resolved = {f"/{key}": value for key, value in without(run.spec, omits(run)).items()}
            values = {pointer: canonical(value) for pointer, value in leaves(resolved).items()}
            alike[canonical([rest, run.seeds])].append(values)
    moved = set(best_over)
    for first, *others in alike.values():
        moved.update(p for other in others for p in first.keys() | other.keys() if first.get(p) != other.get(p))
    return tuple(sorted(moved))


def point_of(run: Run) -> dict[str, Any]:
    """A point for a run that was not part of a sweep: the part of its resolved spec that its results may depend on.

    The network is simplified where halves agree.
    """
    point = {f"/{key}": value for key, value in without(run.spec, (*without_effect(run), "/network", "/seeds")).items()}
    network = object_of(run.spec.get("network"))
    network = object_of(network.get("classes", network))
    shared: dict[str, list[Any]] = defaultdict(list)
    for settings in network.values():
        for key, value in object_of(settings).items():
            parts = object_of(value).items() if key in HALVES else [(None, value)]
            for part, part_value in parts:
                shared[part or key].append(part_value)
    if network and all(len({canonical(v) for v in values}) == 1 for values in shared.values()):
        point["/network"] = {key: values[0] for key, values in shared.items()} | {"classes": "+".join(sorted(network))}
    elif network:
        point["/network/classes"] = network
    return point


def _text(value: Any) -> str:
    """A value in words: "none" for {}, "on" for true, "1, 2" for a list of numbers."""
    if isinstance(value, str):
        return words.spoken(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list) and not any(isinstance(entry, dict | list) for entry in value):
        return ", ".join(map(_text, value)) or "none"
    return canonical(value) if value != {} else "none"


def value_words(value: Any) -> str:
    """A value of a point in words; a loss process with its rate."""
    if value is None:
        return "not given"
    if is_loss(value):
        model = loss_model.from_spec(value)
        return LOSSLESS if model.lossless else f"{model.label} {percent(model.loss_rate)}"
    return link_losses.words(value) if link_losses.is_links(value) else _text(value)


def _names_of(pointers: list[str], given: Mapping[str, str]) -> dict[str, str]:
    """A name in words for each pointer; given: the names that the program has given to swept pointers."""
    rest = [p for p in pointers if p not in given]
    return {
        pointer: KNOWN_POINTERS.get(pointer) or name.replace("_", " ")
        for pointer, name in (short_names([*given, *rest]) | dict(given)).items()
    }


def _is_of_lossy_runs(pointer: str) -> bool:
    return any(within(pointer, member) for member in OF_LOSSY_RUNS)


def _place(pointer: str) -> str:
    """Where a loss applies: "" for all of the network, "tensor parallel forward gather" for that half of that class."""
    parts = [part for part in pointer.split("/") if part not in ("", "network", "classes", "loss", *RATE_KEYS)]
    return " ".join(words.spoken(part).replace(",", "") for part in parts)  # commas separate the words of a series


class SeriesNamer:
    """Names the series and rate of every run of an experiment.

    Attributes: varied (pointers whose value differs between runs, seed not counted); rate_pointer (the one loss that
    is the rate, where several vary on their own; else None).
    """

    def __init__(self, runs: list[Run], best_over: Sequence[str] = (), names: Mapping[str, str] | None = None):
        """best_over: pointers that name no series, since each point is shown at the best of their values.

        names: of the swept pointers, as sweep.json has them.
        """
        self.best_over = tuple(best_over)
        self.given_names = dict(names or {})
        self.moved = moved_by(runs, best_over)
        self._leaves = {run.run_id: leaves(run.point or point_of(run)) for run in runs}
        shared: dict[str, str] = {}  # runs have most values in common
        text = lambda value: shared.setdefault(written := canonical(value), written)  # noqa: E731
        self._texts = {
            run_id: {pointer: text(value) for pointer, value in found.items()} for run_id, found in self._leaves.items()
        }
        self._models = {run.run_id: loss_models(run) for run in runs}
        pointers = list(dict.fromkeys(pointer for found in self._leaves.values() for pointer in found))
        pointers.sort(key=self._place_in_spec)
        self._loss_pointers = {
            pointer for found in self._leaves.values() for pointer, value in found.items()
            if is_loss(value) or link_losses.is_links(value)
        }  # fmt: skip
        self.varied = [pointer for pointer in pointers if self._differs(pointer, list(self._leaves))]
        # Settings that all runs share to which they make a difference must not name every curve but the others.
        networked = [run.run_id for run in runs if not self.lossless(run)]
        timed = [run.run_id for run in runs if "time" in run.spec]
        swept = any(run.point for run in runs)
        self._named = [
            pointer
            for pointer in self.varied
            if not self.is_best_over(pointer)
            and (
                pointer in self._loss_pointers
                or self._differs(
                    pointer,
                    networked if _is_of_lossy_runs(pointer)
                    else timed if within(pointer, "/time") and not swept
                    else list(self._leaves),
                )
            )
        ]  # fmt: skip
        self._names = _names_of(self.varied, self.given_names)
        self._labels = {run.run_id: run.labels for run in runs}
        self._label_values = self._find_label_values()
        self.rate_pointer: str | None = None
        self._rate_label_is_one = False
        self._varying_halves = self._find_varying_halves()
        if self._points_collide(runs):
            self._choose_rate_pointer()

    def _place_in_spec(self, pointer: str) -> int:
        """The place of a leaf's swept pointer in the spec; pointers that sweep.json does not name come last."""
        places = [i for i, swept in enumerate(self.given_names) if within(pointer, swept)]
        return min(places, default=len(self.given_names))

    def _differs(self, pointer: str, run_ids: Sequence[str]) -> bool:
        return len({self._texts[run_id].get(pointer, ABSENT) for run_id in run_ids}) > 1

    def is_best_over(self, pointer: str) -> bool:
        return any(within(pointer, chosen) for chosen in self.best_over)

    def _find_label_values(self) -> dict[tuple[str, tuple[str, ...]], set[str]]:
        """The values that each label stands for: one that stands for several does not name them.

        The loss rate, which the axis shows, makes no difference.
        """
        found: dict[tuple[str, tuple[str, ...]], set[str]] = defaultdict(set)
        for run_id, labels in self._labels.items():
            for text, pointers in labels:
                mine = {
                    p: loss_model.from_spec(v).label if is_loss(v) else v
                    for p, v in self._leaves[run_id].items()
                    if any(within(p, over) for over in pointers)
                }
                found[text, pointers].add(canonical(mine))
        return found

    def _label(self, run: Run, pointer: str) -> str | None:
        """The label that stands for the run's value at a pointer."""
        for text, pointers in self._labels[run.run_id]:
            if any(within(pointer, over) for over in pointers) and len(self._label_values[text, pointers]) == 1:
                return text
        return None

    def labels(self, run: Run) -> str:
        """All labels of the run, without those of the values of which only the best is shown."""
        texts = [t for t, pointers in self._labels[run.run_id] if not any(self.is_best_over(p) for p in pointers)]
        return ", ".join(texts)

    def values(self, run: Run) -> dict[str, Any]:
        """The run's value at each pointer that varies: a number, a text, or an object or list in words."""
        found = self._leaves[run.run_id]
        return {p: value_words(found.get(p)) if isinstance(found.get(p), dict | list) else found.get(p)
                for p in self.varied}  # fmt: skip

    def best_value(self, run: Run) -> str:
        """The run's value of the pointers of best_over in words: "learning rate 0.001"; "" without any."""
        found = self._leaves[run.run_id]
        chosen = [p for p in self.varied if self.is_best_over(p)]
        return ", ".join(
            dict.fromkeys(self._label(run, p) or f"{self._names[p]} {_text(found.get(p))}" for p in chosen)
        )

    def _find_varying_halves(self) -> set[tuple[str, str]]:
        halves = {key for models in self._models.values() for key in models if key[0] != "point"}
        rates = {
            key: {models.get(key, NO_LOSS).loss_rate for m, models in self._models.items() if self._has_files(m)}
            for key in halves
        }
        return {key for key, values in rates.items() if len(values) > 1}

    def _has_files(self, run_id: str) -> bool:
        return not any(key[0] == "point" for key in self._models[run_id])

    def _points_collide(self, runs: list[Run]) -> bool:
        """Whether two runs with one seed, series and rate have different points."""
        lossy = [run for run in runs if not self.lossless(run)]
        seen = Counter((self.series(r), self.rate(r), self.best_value(r), r.seeds) for r in lossy)
        return any(count > 1 for count in seen.values())

    def _choose_rate_pointer(self) -> None:
        """Several losses vary on their own: the first that varies is x, the others go into the series with theirs."""
        for pointer in self.varied:
            if pointer.rsplit("/", 1)[-1] == "loss_rate" or any(
                is_loss(found.get(pointer)) for found in self._leaves.values()
            ):
                self.rate_pointer = pointer
                values = [found[pointer] for found in self._leaves.values() if is_loss(found.get(pointer))]
                labels = {m.label for m in map(loss_model.from_spec, values) if not m.lossless}
                self._rate_label_is_one = len(labels) == 1
                return

    def models(self, run: Run) -> dict[tuple[str, str], LossModel]:
        return self._models[run.run_id]

    def loses_nothing(self, run: Run) -> bool:
        """Whether no packet is missing: no process loses any, none may come late, and none was counted as missing."""
        return is_lossless(self._models[run.run_id]) and not may_miss_packets_by_time(run) and not missing_packets(run)

    def lossless(self, run: Run) -> bool:
        """Whether all ranks get exact messages: none is lost or late, and none is compressed or transformed."""
        return self.loses_nothing(run) and not compresses(run) and not transforms(run.spec)

    def reliable(self, run: Run) -> bool:
        """Whether packets were lost, and all of them were repaired in time."""
        return repaired_packets(run) > 0 and missing_packets(run) == 0

    def rate(self, run: Run) -> float:
        """The run's place on the loss axis, a fraction; NaN where nothing says it."""
        # A rate that was computed from a chain's parameters differs from the one in the spec by rounding.
        return float(f"{self._exact_rate(run):.12g}")

    def _exact_rate(self, run: Run) -> float:
        found = self._leaves[run.run_id]
        if self.rate_pointer is not None and self.rate_pointer in found:
            value = found[self.rate_pointer]
            return loss_model.from_spec(value).loss_rate if is_loss(value) else probability(value)
        models = self._models[run.run_id]
        chosen = [m for key, m in models.items() if key in self._varying_halves] or list(models.values())
        rates = [m.loss_rate for m in chosen if not math.isnan(m.loss_rate)]
        if not rates and chosen:
            return math.nan
        return max(rates, default=0.0)

    def series(self, run: Run) -> str:
        """The run's curve: its varied leaves in words, without seed and rate."""
        lossless = self.lossless(run)
        exempt = self.loses_nothing(run) and not lossless
        words = list(dict.fromkeys([LOSSLESS] * lossless + [NO_PROCESS] * exempt + self.settings(run)))
        if not lossless and not exempt and self._loss_pointers.isdisjoint(self.varied):
            words.insert(0, self.model_label(run))
        return ", ".join(words) or "all runs"

    def settings(self, run: Run, without: Callable[[str], bool] = lambda _: False) -> list[str]:
        """The run's varied leaves in words, but for the pointers of which `without` is true."""
        found = self._leaves[run.run_id]
        lossless, loses_nothing = self.lossless(run), self.loses_nothing(run)
        words = [
            self._label(run, pointer) or self._word(run, pointer, found[pointer])
            for pointer in self._named
            if pointer in found and not without(pointer)
            and not (lossless and _is_of_lossy_runs(pointer))
            and not (loses_nothing and pointer in self._loss_pointers)
        ]  # fmt: skip
        return list(filter(None, words))

    def same_points(self, run: Run) -> str:
        """The settings and seeds in which the points of this run differ: "fill zero or stale"; "" with one point."""
        points = [leaves(point) for point in (run.point, *run.other_points)]
        pointers = sorted(dict.fromkeys(p for point in points for p in point), key=self._place_in_spec)
        names = _names_of(pointers, self.given_names)
        texts = []
        for pointer in pointers:
            values = {canonical(point.get(pointer)): point.get(pointer) for point in points}
            if len(values) > 1:
                texts.append(f"{names[pointer]} {words.either(map(value_words, values.values()))}")
        if run.other_network_seeds and run.seeds:
            texts.append(f"network seeds {words.either(map(str, sorted({run.seeds[2], *run.other_network_seeds})))}")
        return "; ".join(texts)

    def _word(self, run: Run, pointer: str, value: Any) -> str:
        last = pointer.rsplit("/", 1)[-1]
        place = _place(pointer)
        others_rate = self.rate_pointer is not None and pointer != self.rate_pointer
        if is_loss(value):
            model = loss_model.from_spec(value)
            if self.rate_pointer == pointer and (model.lossless or self._rate_label_is_one):
                return ""  # the axis says it
            if model.lossless and not place:
                return NO_PROCESS if is_lossless(self._models[run.run_id]) else NO_LOSS_ELSEWHERE
            label = model.words if others_rate or model.lossless else model.label
            return f"{place} {label}".strip()
        if link_losses.is_links(value):
            return link_losses.words(value)
        if last in RATE_KEYS:
            return f"{place} {percent(probability(value))}".strip() if others_rate else ""
        return f"{self._names[pointer]} {_text(value)}"

    def model_label(self, run: Run) -> str:
        """The run's loss processes in words, without rates; different ones joined by +. Late packets are of none."""
        lossy = [m.label for m in self._models[run.run_id].values() if not m.lossless]
        return " + ".join(dict.fromkeys(lossy)) or (LOSSLESS if self.lossless(run) else NO_PROCESS)

    def mean_burst_packets(self, run: Run) -> float:
        """The largest mean burst among the run's lossy halves; NaN where there is none."""
        bursts = [m.mean_burst_packets for m in self._models[run.run_id].values() if not m.lossless]
        bursts = [b for b in bursts if not math.isnan(b)]
        return max(bursts, default=math.nan)

    def same_settings(self, run: Run, other: Run) -> int:
        """How many varied leaves the two runs share; picks the nearest of several twins."""
        return sum(mine == its for mine, its in zip(self.settings_key(run), self.settings_key(other), strict=True))

    def settings_key(self, run: Run) -> tuple[str, ...]:
        """The run's varied leaves: equal for runs that share all of them."""
        found = self._texts[run.run_id]
        return tuple(found.get(pointer, ABSENT) for pointer in self.varied)
