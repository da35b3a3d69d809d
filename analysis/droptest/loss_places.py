# SPDX-License-Identifier: Apache-2.0
"""Where the runs of an experiment lose packets: halves, traffic classes, links, layers.

The *place* of a run is the part of its network that loses packets, as far as the places of the runs differ: "gather
half", "tensor parallel, forward", "from 3", "protected: layers 1, 2, 3". A label of the spec stands for the place that
it alone names. The *rest* of a run is its series without the place: the loss process and the other varied settings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from droptest import link_losses, loss_model, words
from droptest.files import Run, object_of
from droptest.series import SeriesNamer

BOTH, ALL, UNPROTECTED = words.HALVES["both"], "all classes", "nothing protected"


@dataclass(frozen=True)
class _Parts:
    """Where a run loses packets: (class, half) pairs, the protected messages and the links in words."""

    lossy: frozenset[tuple[str, str]]
    protected: str
    links: str

    @property
    def classes(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.lossy)

    @property
    def halves(self) -> frozenset[str]:
        return frozenset(half for _, half in self.lossy)

    @property
    def crossed(self) -> bool:
        """Whether every one of the classes loses in the same halves."""
        return len(self.lossy) == len(self.classes) * len(self.halves)


def places_and_rests(runs: Sequence[Run], namer: SeriesNamer) -> dict[str, tuple[str, str]]:
    """(place, rest) by run_id; ("", "") for runs that lose nothing, or of which there is no spec."""
    lossy = [run for run in runs if run.spec and not namer.loses_nothing(run)]
    parts = {run.run_id: _parts(run, namer) for run in lossy}
    place = {run_id: text for run_id, text in zip(parts, _words(list(parts.values())), strict=True)}
    place = _labelled(place, lossy, namer)
    processes = {run.run_id: _processes(run, namer) for run in lossy}
    told = len(set(processes.values())) > 1
    found = dict.fromkeys((run.run_id for run in runs), ("", ""))
    for run in lossy:
        rest = [processes[run.run_id] if told else "", *namer.settings(run, without=is_place)]
        found[run.run_id] = (place[run.run_id], ", ".join(dict.fromkeys(filter(None, rest))))
    return found


def is_place(pointer: str) -> bool:
    """Whether a pointer of a spec says where packets are lost, or how many."""
    parts = pointer.split("/")
    return parts[1:2] == ["network"] and any(part in ("loss", "links", "protect") for part in parts)


def _parts(run: Run, namer: SeriesNamer) -> _Parts:
    lossy = frozenset(key for key, model in namer.models(run).items() if not model.lossless)
    classes = object_of(object_of(run.spec.get("network")).get("classes"))
    protected, links = [], []
    for name, half in sorted(lossy):
        settings = object_of(classes.get(name))
        protected.append(_protected(object_of(object_of(settings.get("recovery")).get("protect"))))
        found = object_of(settings.get(half)).get("links")
        links.append(link_losses.conditions(found) if link_losses.is_links(found) else "")
    return _Parts(lossy, "; ".join(dict.fromkeys(protected)), "; ".join(dict.fromkeys(filter(None, links))))


def _protected(protect: dict[str, object]) -> str:
    texts = []
    for key, value in protect.items():
        if isinstance(value, dict):
            value = [f"{end} {number}" for end, number in value.items()]
        texts.append(f"{key} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return f"protected: {'; '.join(texts)}" if texts else UNPROTECTED


def _words(every: list[_Parts]) -> list[str]:
    """The place of each run, without the parts that are the same in all."""
    differs = lambda name: len({getattr(parts, name) for parts in every}) > 1  # noqa: E731
    crossed = all(parts.crossed for parts in every)
    halves, classes, lossy, protected, links = map(differs, ("halves", "classes", "lossy", "protected", "links"))
    whole = frozenset().union(*(parts.classes for parts in every)) if every else frozenset()
    found = []
    for parts in every:
        texts = []
        if not crossed and lossy:
            pairs = [f"{words.spoken(name)}, {words.HALVES[half]}" for name, half in sorted(parts.lossy)]
            texts.append(" + ".join(pairs))
        else:
            if classes:
                texts.append(ALL if parts.classes == whole
                             else " + ".join(map(words.spoken, sorted(parts.classes))))  # fmt: skip
            if halves:
                texts.append(BOTH if len(parts.halves) > 1 else " ".join(words.HALVES[h] for h in parts.halves))
        texts += [parts.protected] if protected else []
        texts += [parts.links or "no single links"] if links else []
        found.append("; ".join(filter(None, texts)))
    return found


def _labelled(place: dict[str, str], runs: Sequence[Run], namer: SeriesNamer) -> dict[str, str]:
    """The places with the spec's labels, where labels and places name each other one to one."""
    labels = {run.run_id: ", ".join(t for t, over in run.labels if any(is_place(p) for p in over)) for run in runs}
    of_place, of_label = defaultdict(set), defaultdict(set)
    for run_id, text in labels.items():
        of_place[place[run_id]].add(text)
        of_label[text].add(place[run_id])
    if "" in of_label or any(len(found) > 1 for found in (*of_place.values(), *of_label.values())):
        return place
    return labels


def _processes(run: Run, namer: SeriesNamer) -> str:
    """The loss processes of a run in words, without rates and places."""
    texts = []
    classes = object_of(object_of(run.spec.get("network")).get("classes"))
    for (name, half), model in namer.models(run).items():
        links = object_of(object_of(classes.get(name)).get(half)).get("links")
        if link_losses.is_links(links):
            texts += [loss_model.from_spec(override["loss"]).label for override in links]
        elif not model.lossless:
            texts.append(model.label)
    return " + ".join(dict.fromkeys(texts))
