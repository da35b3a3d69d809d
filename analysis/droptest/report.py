# SPDX-License-Identifier: Apache-2.0
"""Plots and a self-contained report.html of an experiment."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from droptest import page, seeds, virtual_time
from droptest.files import RUN_FILES, RecordError, object_of
from droptest.loss_model import percent
from droptest.page import Markup
from droptest.records import Records
from droptest.summary import HEADER, Group, groups, number, row_of, with_interval

ABSENT = ("missing", "unfinished", "unreadable")


@dataclass(frozen=True)
class Questions:
    """What the section on seeds answers. effects: how many seeds are needed to see each; margin: what is equal within
    it, None: the smallest margin alone. In nats per token."""

    effects: Sequence[float] = seeds.EFFECTS
    margin: float | None = None


NO_QUESTIONS = Questions()


@dataclass
class Written:
    """What a report wrote, and what it could not show."""

    report: Path
    plots: list[Path] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def write_report(records: Records, out: Path, questions: Questions = NO_QUESTIONS) -> Written:
    """Writes out/report.html and out/plots/<figure>.png and .svg. Raises: RecordError where `out` cannot be written."""
    # Late, so that tables can be had without matplotlib.
    from droptest import plots, style

    written = Written(out / "report.html", warnings=list(records.warnings))
    figures: list[tuple[str, str, Path]] = []
    not_drawn: list[str] = []
    try:
        for name, module in plots.FIGURES.items():
            try:
                paths = style.save(plots.draw(name, records), out / "plots", name)
            except plots.NothingToDraw as reason:
                if not isinstance(reason, plots.NotMeant):
                    not_drawn.append(f"{module.TITLE}: {reason}")
                for extension in style.FORMATS:  # one of an earlier report would be out of date
                    (out / "plots" / f"{name}.{extension}").unlink(missing_ok=True)
                continue
            written.plots += paths
            figures.append((module.TITLE, module.CAPTION, out / "plots" / f"{name}.svg"))
        text = page.page(f"{records.name} - droptest report", *_sections(records, out, figures, not_drawn, questions))
        write_whole(written.report, text)
    except OSError as error:
        raise RecordError(f"{error.filename or out}: cannot write the report: {error.strerror}") from error
    written.warnings += [f"not drawn: {reason}" for reason in not_drawn]
    return written


def write_whole(path: Path, text: str) -> None:
    """Writes a file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_index(reports: list[tuple[Records, Written]], out: Path) -> Path:
    """Writes out/report.html, which lists the reports of several experiments."""
    rows = [
        (page.link(relative(written.report, out), records.name), _outcome(records), records.description)
        for records, written in reports
    ]
    title = f"{len(reports)} experiments"
    write_whole(out / "report.html", page.page(
        f"{title} - droptest report", page.element("h1", title),
        page.table(("experiment", "runs", "description"), rows, wraps=(2,))))  # fmt: skip
    return out / "report.html"


def relative(target: Path, folder: Path) -> str:
    """A relative link from a page in `folder`."""
    return quote(Path(os.path.relpath(target.resolve(), folder.resolve())).as_posix())


def _outcome(records: Records) -> str:
    """ "27 runs planned: 25 completed, 1 diverged, 1 failed"."""
    statuses = records.runs["status"].value_counts()
    order = ("completed", "diverged", "failed", *ABSENT[1:], "missing")
    parts = ", ".join(f"{statuses[s]} {s}" for s in order if s in statuses)
    planned = f"{records.planned} runs planned" if records.planned is not None else f"{len(records.runs)} run(s)"
    same = sum(len(run.other_points) for run in records.files.values())
    if same:
        planned += f" for {records.planned + same} points and seeds, of which {same} are the same run as another"
    return f"{planned}: {parts or 'none'}"


def _sections(
    records: Records, out: Path, figures: list[tuple[str, str, Path]], not_drawn: list[str], questions: Questions
) -> Iterator[object]:
    every = groups(records)
    yield page.element("p", "droptest report", class_="soft")
    yield page.element("h1", records.name)
    if records.description:
        yield page.element("p", records.description)
    yield page.element("p", _outcome(records) + ".")
    if records.warnings:
        yield page.element("div", page.bullets(records.warnings), class_="warnings")
    findings = [records.search.in_words()] if records.search is not None else []
    findings += _findings(every)
    if findings:
        yield page.element("h2", "In short")
        yield page.bullets(findings)
    yield page.element("h2", "Summary")
    yield _summary(every)
    yield page.element("p", (
        "Losses are nats per token: mean ± half of the 95 % interval (Student t) over the finished seeds. The "
        "difference is to the lossless run with the same spec and seed, paired by seed. z compares realised and "
        "configured loss by the process's own count variance, over classes, halves and seeds (Stouffer)."
    ), class_="soft")  # fmt: skip
    yield page.element("h2", "Plots")
    for title, caption, svg in figures:
        links = page.joined([page.link(relative(svg.with_suffix(f".{e}"), out), e.upper()) for e in ("png", "svg")],
                            ", ")  # fmt: skip
        yield page.image(svg, title, page.joined([page.element("b", f"{title}. "), caption, " ", links]))
    if not_drawn:
        yield page.element("p", "Not drawn:")
        yield page.bullets(not_drawn)
    if virtual_time.has_virtual_time(records):
        yield page.element("h2", "Virtual time")
        yield _virtual_time(records)
    yield from _seeds(records, questions)
    yield page.element("h2", "Loss statistics")
    yield _loss_statistics(records)
    yield page.element("h2", "What is missing")
    yield _missing(records)
    yield page.element("h2", "Runs")
    yield _runs(records, out)
    yield page.element("h2", "What was run")
    yield _provenance(records)
    yield _details("Spec as given" if records.planned is not None else "Spec", records.spec)
    resolved = next((run for run in records.files.values() if run.spec and run.spec is not records.spec), None)
    if resolved is not None:
        yield _details(f"Resolved spec of run {resolved.run_id}", resolved.spec)


def _details(title: str, value: object) -> Markup:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return page.element("details", page.element("summary", title), page.element("pre", text))


def _findings(every: list[Group]) -> Iterator[str]:
    """What the differences say, one sentence per series, in numbers only."""
    for series in dict.fromkeys(g.series for g in every if not g.lossless):
        own = [g for g in every if g.series == series and g.difference.n]
        if not own:
            continue
        worst = max(own, key=lambda g: g.loss_rate)
        text = f"{series}: at {percent(worst.loss_rate)} loss the final validation loss differs from lossless by "
        text += f"{with_interval(worst.difference, signed='+')} nats per token"
        clear = [g for g in own if g.difference.has_width and (g.difference.low > 0 or g.difference.high < 0)]
        with_width = [g for g in own if g.difference.has_width]
        if clear:
            first = min(clear, key=lambda g: g.loss_rate)
            if first is worst:
                text += (
                    "; its interval excludes 0" if len(with_width) == 1 else "; no smaller rate's interval excludes 0"
                )
            else:
                text += f"; the smallest rate whose interval excludes 0 is {percent(first.loss_rate)} "
                text += f"({with_interval(first.difference, signed='+')})"
        elif with_width:
            text += "; no rate's interval excludes 0"
        yield text + "."
    for group in every:
        if group.count("diverged"):
            yield (f"{group.series} at {percent(group.loss_rate)}: {group.count('diverged')} of "
                   f"{sum(group.statuses.values())} runs diverged.")  # fmt: skip


def _summary(every: list[Group]) -> Markup:
    rows = [row_of(group) for group in every]
    kept = [i for i in range(len(HEADER)) if i == 0 or any(row[i] not in ("", "-") for row in rows)]
    texts = {HEADER.index(name) for name in ("series", "loss model", "note")}
    return page.table(
        [HEADER[i] for i in kept], [[row[i] for i in kept] for row in rows],
        [position for position, i in enumerate(kept) if i not in texts],
    )  # fmt: skip


def _virtual_time(records: Records) -> Markup:
    """The final clocks, the times to the target loss, and the break-even rates."""
    target = virtual_time.default_target(records)
    if math.isnan(target):
        return page.element("p", "No lossless or reliable run has finished, so there is no target loss.")
    every = virtual_time.curves(records, target)
    rows = [
        (curve.series, "reliable" if curve.reliable else "tolerant", percent(rate), len(times),
         with_interval(curve.interval(rate)) if math.isfinite(curve.interval(rate).mean) else "never")
        for curve in every for rate, times in curve.times.items()
    ]  # fmt: skip
    header = ("series", "network", "loss rate", "seeds", f"virtual seconds to a validation loss of {target:.4g}")
    found = [f"{b.tolerant}, tolerant, against {b.reliable}: {virtual_time.in_words(b)}."
             for b in virtual_time.break_evens(every)]  # fmt: skip
    return page.joined([page.table(header, rows, (2, 3, 4)), page.bullets(found) if found else "", page.element("p", (
        "The target is 5 % above the worst final validation loss of the lossless runs. Break-even: the rate from which "
        "a tolerant network needs longer than a reliable one, ln(time ratio) paired by seed and interpolated over the "
        "logarithm of the rate; its interval has the rates at which a paired t test does not reject equal times."
    ), class_="soft")])  # fmt: skip


def _seeds(records: Records, questions: Questions) -> Iterator[Markup]:
    """Variances, seeds needed and equality; nothing where no point has two differences."""
    plan = seeds.plan_table(records, questions.effects)
    if not plan[1]:
        return
    yield page.element("h2", "Seeds")
    tables = (seeds.spread_table(records), plan, seeds.comparison_table(records, questions.margin))
    texts = ("series", "against", "quantity")
    for header, rows in tables:
        if rows:
            numbers = [i for i, name in enumerate(header) if name not in texts and not name.startswith("to see")]
            yield page.table(header, rows, numbers)
    yield page.bullets(seeds.notes(records))
    yield page.element("p", seeds.EXPLANATION, class_="soft")


def _loss_statistics(records: Records) -> Markup:
    frame = records.loss_statistics
    if frame.empty:
        text = "There are no loss statistics: no run has finished, or no class loses packets."
        return page.element("p", text)
    rows = []
    keys = ["series", "loss_rate", "class", "half"]
    for (series, rate, traffic_class, half), part in frame.groupby(keys, sort=False, dropna=False):
        packets, lost = part["packets"].sum(), part["lost"].sum()
        configured = (part["configured_rate"] * part["packets"]).sum() / packets if packets else math.nan
        rows.append(
            (series, percent(rate), traffic_class, half, _first(part["path"]), _first(part["fill"]), len(part),
             _count(part["collectives"]), _count(part["packets"]), _count(part["lost"]),
             "-" if math.isnan(configured) else f"{100 * configured:.4f} %",
             f"{100 * lost / packets:.4f} %" if packets else "-",
             *(number(z, 2) for z in _z_range(part["z"])), number(part["configured_mean_burst_packets"].mean(), 3),
             number(part["mean_burst_packets"].mean(), 3), _share(part["untouched_share"]),
             number(part["nmse"].mean(), 5), number(part["cosine"].mean(), 5))
        )  # fmt: skip
    header = ("series", "loss rate", "class", "half", "path", "fill", "runs", "collectives", "packets", "lost",
              "configured", "realised", "smallest z", "largest z", "configured burst", "realised burst", "untouched",
              "NMSE", "cosine")  # fmt: skip
    used = [i for i in range(len(header)) if any(row[i] != "-" for row in rows)]
    table = page.table([header[i] for i in used], [[row[i] for i in used] for row in rows],
                       [p for p, i in enumerate(used) if i not in (0, 2, 3, 4, 5)])  # fmt: skip
    return page.joined([table, page.element("p", (
        "Counts are sums over the runs of a point, the rest are means. Bursts are in packets; untouched is the share "
        "of collectives in which no packet was lost; NMSE and cosine compare results with the exact ones."
    ), class_="soft")])  # fmt: skip


def _first(values: pd.Series) -> str:
    return " | ".join(dict.fromkeys(str(v) for v in values.dropna())) or "-"


def _count(values: pd.Series) -> str:
    return f"{values.sum():,.0f}".replace(",", " ") if values.notna().any() else "-"


def _share(values: pd.Series) -> str:
    return f"{100 * values.mean():.1f} %" if values.notna().any() else "-"


def _z_range(values: pd.Series) -> tuple[float, float]:
    known = values.dropna()
    return (known.min(), known.max()) if len(known) else (math.nan, math.nan)


def _missing(records: Records) -> Markup:
    frame = records.of_status("failed", *ABSENT)
    if frame.empty:
        return page.element("p", "Nothing: every run has finished." if len(records.runs) else "There are no runs.")
    rows = [(row.run_id, row.series, percent(row.loss_rate), _seed(row.seed), row.status, _why(row))
            for row in frame.itertuples()]  # fmt: skip
    return page.table(("run", "series", "loss rate", "seed", "status", "why"), rows, (2, 3), (5,))


def _seed(seed: object) -> str:
    return "-" if seed is None or seed != seed else str(seed)


def _why(row) -> str:
    if row.error:
        return row.error
    if row.status == "missing":
        return "planned in sweep.json, not run yet"
    step = "" if math.isnan(row.last_step) else f", last logged step {row.last_step:.0f}"
    return f"no summary.json: it goes on, or was stopped{step}"


def _runs(records: Records, out: Path) -> Markup:
    rows = []
    for row in records.runs.itertuples():
        files = [page.link(relative(row.path / name, out), name) for name in RUN_FILES if (row.path / name).is_file()]
        status = row.status if math.isnan(row.diverged_step) else f"{row.status} at step {row.diverged_step:.0f}"
        rows.append(
            (row.run_id, row.series, percent(row.loss_rate), _seed(row.seed), status,
             number(row.final_validation_loss), f"{row.difference:+.4f}" if row.difference == row.difference else "-",
             number(row.tokens_per_second, 0), number(row.seconds, 1), page.joined(files, " ") if files else "-")
        )  # fmt: skip
    header = ("run", "series", "loss rate", "seed", "status", "final validation loss", "difference", "tokens/s",
              "seconds", "records")  # fmt: skip
    return page.table(header, rows, (2, 3, 5, 6, 7, 8))


def _provenance(records: Records) -> Markup:
    """Each key of the runs' provenance with its values; times as first and last."""
    seen: dict[str, dict[str, int]] = {}
    for run in records.files.values():
        for key, value in object_of(run.summary.get("provenance")).items():
            text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
            counts = seen.setdefault(key, {})
            counts[text] = counts.get(text, 0) + 1
    pairs = [("folder", str(records.path)), ("varied", ", ".join(records.varied) or "seed only")]
    for key, counts in seen.items():
        if key in ("started", "finished"):
            pairs.append((key, min(counts) if key == "started" else max(counts)))
        elif len(counts) == 1:
            pairs.append((key, next(iter(counts))))
        else:
            pairs.append((key, "; ".join(f"{text} ({count} runs)" for text, count in counts.items())))
    return page.definitions(pairs)
