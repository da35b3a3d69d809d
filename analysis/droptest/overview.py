# SPDX-License-Identifier: Apache-2.0
"""An experiment in a few lines, and as a small table of HTML, for prompts and notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Protocol

from droptest.summary import HEADER, Frames, groups, row_of
from droptest.words import cut

MOST_SERIES = 6
MOST_CHARACTERS = 60  # of a name
MOST_ROWS = 20
MOST_BYTES = 12_000  # of the rows
MOST_OF_A_LINE = 400  # characters, of which each takes at most six bytes in HTML
SHOWN = ("series", "loss rate", "best value", "seeds", "final validation loss", "difference to lossless", "diverged",
         "failed", "realised rate")  # fmt: skip


class Experiment(Frames, Protocol):
    """What these texts are made of; records.Records has it all."""

    path: Path
    name: str
    unit: str
    warnings: list[str]


def lines(records: Experiment) -> list[str]:
    """Name and folder, runs by status with their steps, series, number of warnings."""
    runs = records.runs
    statuses = [f"{count} {status}" for status, count in Counter(runs["status"]).most_common()]
    steps = runs["last_step"].max() if len(runs) else float("nan")
    up_to = f", up to step {steps:.0f}" if steps == steps else ""
    series = list(dict.fromkeys(records.best.runs["series"]))
    more = f"; and {len(series) - MOST_SERIES} more" if len(series) > MOST_SERIES else ""
    found = [f"Records of {cut(records.name, MOST_CHARACTERS)!r} in {records.path}",
             f"runs: {len(runs)} ({', '.join(statuses)}){up_to}" if len(runs) else "runs: none",
             f"series: {'; '.join(cut(name, MOST_CHARACTERS) for name in series[:MOST_SERIES])}{more}"]  # fmt: skip
    return [*found, *([f"warnings: {len(records.warnings)}, in .warnings"] if records.warnings else [])]


def html(records: Experiment) -> str:
    """The lines, and the summary's first points as a table. At most 20 kB."""
    every = groups(records)
    rows = [dict(zip(HEADER, row_of(group), strict=True)) for group in every[:MOST_ROWS]]
    columns = [name for name in SHOWN if name == "series" or any(row[name] not in ("", "-") for row in rows)]
    text = "".join(f"<div>{escape(cut(line, MOST_OF_A_LINE))}</div>" for line in lines(records))
    text += f"<table><thead>{_row(columns, 'th')}</thead><tbody>"
    room, shown = MOST_BYTES, 0
    for row in rows:
        line = _row((cut(row[name], MOST_CHARACTERS) for name in columns), "td")
        room -= len(line.encode())
        if room < 0:
            break
        text, shown = text + line, shown + 1
    text += "</tbody></table>"
    if shown < len(every):
        text += f"<div>and {len(every) - shown} more points, in droptest.points(records)</div>"
    return f"{text}<div>losses: {escape(records.unit)}</div>" if rows else text


def _row(cells: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
