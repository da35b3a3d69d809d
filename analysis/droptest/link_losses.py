# SPDX-License-Identifier: Apache-2.0
"""Losses of single links (a network's `links`): their words, and the loss rate over all links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from droptest.loss_model import LossModel, from_spec

CONDITIONS = {
    "sources": "from",
    "destinations": "to",
    "ranks": "from or to",
    "between_groups_of": "between groups of",
    "within_groups_of": "within groups of",
}


def is_links(value: Any) -> bool:
    """Whether a value of a spec is a list of overrides with at least one."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) and "loss" in v for v in value)


def words(links: list[dict[str, Any]]) -> str:
    """The overrides for people, e.g. "from 3 Bernoulli 20 %"."""
    parts = []
    for override in links:
        parts.append(f"{_condition(override)} {from_spec(override['loss']).words}".strip())
    return "; ".join(parts)


def conditions(links: list[dict[str, Any]]) -> str:
    """The links that the overrides are of, e.g. "from 3"."""
    return "; ".join(dict.fromkeys(_condition(override) or "all links" for override in links))


def _condition(override: dict[str, Any]) -> str:
    return " ".join(f"{word} {_ranks_text(override[key])}" for key, word in CONDITIONS.items() if key in override)


def model(links: list[dict[str, Any]], otherwise: LossModel, pairs: Sequence[tuple[int, int | None]]) -> LossModel:
    """One (class, half) with overrides, as one model: its rate is the mean over the links from source to destination.

    Of several overrides that match a link the last one counts. A process whose rate its spec does not say gives NaN,
    and so do overrides of links that are not known: no pairs.
    """
    rates = [
        next((from_spec(o["loss"]).loss_rate for o in reversed(links) if _matches(o, s, d)), otherwise.loss_rate)
        for s, d in pairs
    ]
    if not rates and all(from_spec(o["loss"]).lossless for o in links):
        rates = [otherwise.loss_rate]
    rate = sum(rates) / len(rates) if rates else math.nan
    return LossModel("links" if rate != 0 else "none", rate, math.nan, words(links))


def _ranks_text(value: Any) -> str:
    return ", ".join(str(v) for v in value) if isinstance(value, list) else str(value)


def _contains(ranks: list[int | str], rank: int) -> bool:
    for entry in ranks:
        first, _, last = str(entry).partition("-")
        if int(first) <= rank <= int(last or first):
            return True
    return False


def _matches(override: dict[str, Any], source: int, destination: int | None) -> bool:
    if not _contains(override.get("sources", [source]), source):
        return False
    if destination is None:
        return not any(key in override for key in CONDITIONS if key != "sources")
    between, within = override.get("between_groups_of"), override.get("within_groups_of")
    return (
        _contains(override.get("destinations", [destination]), destination)
        and any(_contains(override.get("ranks", [end]), end) for end in (source, destination))
        and (between is None or source // between != destination // between)
        and (within is None or source // within == destination // within)
    )
