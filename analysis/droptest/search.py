# SPDX-License-Identifier: Apache-2.0
"""search.json: the highest loss rate that a training tolerates, and the rates that were tried for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from droptest.files import MalformedRecord, object_of, read_json
from droptest.loss_model import percent

VERDICTS = ("passes", "undecided", "fails")


@dataclass(frozen=True)
class Judged:
    """A rate that was judged. rate: fraction; mean, low, high, difference: percent of the lossless twin's loss.

    mean, low and high are None where a run diverged, and so is the difference of that run.
    runs: (run_id, difference) of each that was judged.
    """

    rate: float
    verdict: str
    mean: float | None
    low: float | None
    high: float | None
    runs: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True)
class Search:
    """A search as its record tells it. Rates are fractions; threshold, low and high are None where not known."""

    pointer: str
    tolerance_percent: float
    status: str
    remark: str
    threshold: float | None
    low: float | None
    high: float | None
    monotone: bool
    judged: tuple[Judged, ...]
    run_ids: tuple[tuple[str, int], ...]  # every run with its seed, the lossless twins first

    def in_words(self) -> str:
        """The result."""
        rate = lambda end: "no tested rate" if end is None else percent(end)  # noqa: E731
        text = f"Search for the highest {self.pointer} at which the final validation loss is at most "
        text += f"{self.tolerance_percent:g} % above that of the lossless twin: {rate(self.low)} surely passes, "
        text += f"{rate(self.high)} surely fails"
        if self.threshold is not None:
            text += f", and the estimate is {100 * self.threshold:.3g} %"
        if self.remark:
            text += f"; {self.remark}"
        if not self.monotone:
            text += "; a rate fails below one that passes, so the curve is not monotone"
        return f"{text}. A search tests often, so its intervals are wider than those of the other verdicts."


def read_search(path: Path) -> Search | None:
    """The search.json of an experiment's folder; None where there is none. Raises: MalformedRecord."""
    file = path / "search.json"
    if not file.is_file():
        return None
    record = read_json(file)
    try:
        return _search_of(record)
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedRecord(f"{file}: not what docs/records.md says: {error!r}") from error


def _search_of(record: dict[str, Any]) -> Search:
    settings, interval = object_of(record["settings"]), object_of(record["interval"])
    runs = [*record["twins"], *(run for rate in record["rates"] for run in rate["runs"])]
    judged = []
    for rate in record["rates"]:
        if rate["verdict"] not in VERDICTS:
            continue
        of_rate = tuple((str(run["run_id"]), run["difference_percent"]) for run in rate["runs"])
        judged.append(Judged(rate["rate"], rate["verdict"], rate["mean_percent"], rate["low_percent"],
                             rate["high_percent"], of_rate))  # fmt: skip
    return Search(
        settings["pointer"], float(settings["tolerance_percent"]), record["status"], record["remark"],
        record["threshold"], interval["low"], interval["high"], bool(record["monotone"]), tuple(judged),
        tuple((str(run["run_id"]), int(run["seed"])) for run in runs),
    )  # fmt: skip
