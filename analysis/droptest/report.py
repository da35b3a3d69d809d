# SPDX-License-Identifier: Apache-2.0
"""Figures, tables and a self-contained report.html of an experiment."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import pandas as pd

from droptest import seeds, virtual_time, wall_time
from droptest.files import COUNTED, OF_PROGRAMS, RUN_FILES, RecordError, Run, object_of
from droptest.loss_model import percent
from droptest.records import Records
from droptest.summary import Group, groups, with_interval
from droptest.tables import ABSENT, NO_QUESTIONS, Questions, Table, table

# The questions in order, with the tables and figures that answer each.
SECTIONS = (
    ("tolerable", "Which loss rate is tolerable?",
     ("figure tolerance", "table tolerance", "figure threshold", "figure final_loss", "figure accuracy",
      "figure confusion", "table classification", "figure rate_map", "table summary")),
    ("breaks", "What breaks?", ("figure training_curves", "figure differences", "figure divergence", "table missing")),
    ("recoveries", "Which recovery is worth its price?", ("figure recoveries", "table recoveries")),
    ("why", "Where do losses and errors occur?", ("figure places", "figure layers", "figure links")),
    ("network", "Did the network lose packets as the spec says?",
     ("figure loss_rate_check", "figure burst_lengths", "table loss_statistics")),
    ("time", "What does it cost in time?",
     ("figure time_to_target", "figure loss_over_time", "figure step_time", "table virtual_time")),
    ("wall", "Where does the wall time go?", ("figure time_shares", "table wall_time")),
    ("memory", "How much memory does it take?", ("table memory",)),
    ("seeds", "How many seeds does an effect need?",
     ("figure variances", "table spread", "table seeds_needed", "table equality")),
    ("compare", "Compare two points", ()),
    ("runs", "Every run", ("table runs",)),
    ("origin", "What was run", ()),
)  # fmt: skip


# Figures of what the network did, which other programs have, too; of these the report says why one is not drawn.
OF_NETWORK = ("loss_rate_check", "burst_lengths")
LEFT_OUT = (
    "A program has records of its network, and metrics.jsonl where it writes that itself; figures and tables that need "
    "other records are left out."
)
SAMPLED = ("divergence", "layers", "time_shares")  # figures of samples, which programs do not take
SAMPLES_LEFT_OUT = (
    "Programs of users take no samples of collectives, of divergence and of wall times; figures of these are left out."
)
SECTIONS_OF_PROGRAMS = (
    ("network", "Did the network lose packets as the spec says?",
     ("table summary", "figure loss_rate_check", "figure burst_lengths", "figure links", "table loss_statistics")),
    ("training", "What did the training do?",
     ("figure training_curves", "figure divergence", "figure loss_over_time", "figure time_shares", "table wall_time")),
    ("runs", "The records", ("table runs",)),
    ("origin", "What was run", ()),
)  # fmt: skip


@dataclass
class Written:
    """The files of a report, warnings about figures that it could not show, and notes on those that it need not."""

    report: Path
    plots: list[Path] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def write_report(records: Records, out: Path, questions: Questions = NO_QUESTIONS) -> Written:
    """Writes out/report.html, out/plots/<figure>.png, .svg and .csv, and out/tables/<table>.csv.

    Raises: RecordError where `out` cannot be written.
    """
    # Late, so that tables can be had without matplotlib.
    from droptest import comparison, interactive, plots, style

    written = Written(out / "report.html", warnings=list(records.warnings))
    written.notes += [LEFT_OUT] * records.of_programs
    lacks_samples = records.are_counted_by_ranks and not records.of_programs
    written.notes += [SAMPLES_LEFT_OUT] * lacks_samples
    drawn: dict[str, Any] = {}
    try:
        parts: dict[str, dict[str, Any]] = {}
        not_drawn: dict[str, str] = {}
        for name, module in plots.FIGURES.items():
            try:
                data = plots.data(name, records)
            except plots.NothingToDraw as reason:
                if (
                    not isinstance(reason, plots.NotMeant)
                    and not (lacks_samples and name in SAMPLED)
                    and (not records.of_programs or (name in OF_NETWORK and not records.loss_statistics.empty))
                ):
                    not_drawn[f"figure {name}"] = f"{module.TITLE}: {reason}"
                for extension in (*style.FORMATS, "csv"):  # one of an earlier report would be out of date
                    (out / "plots" / f"{name}.{extension}").unlink(missing_ok=True)
                continue
            described = plots.describe(name, data)
            paths = write_figure(name, data, out / "plots", described)
            written.plots += paths
            picture = next(path for path in paths if path.suffix == ".svg")
            parts[f"figure {name}"] = {
                "name": name, "tall": _is_tall(picture), "title": module.TITLE, "caption": _caption(module, data),
                "picture": base64.b64encode(picture.read_bytes()).decode("ascii"),
                "command": command("plot", name, records), "files": _links(paths, out), "names": described["names"],
            }  # fmt: skip
            drawn[name] = interactive.page_of(described)
        for name in [part.split()[1] for _, _, every in SECTIONS for part in every if part.startswith("table ")]:
            found = table(name, records, questions)
            target = out / "tables" / f"{name}.csv"
            if found is None:
                target.unlink(missing_ok=True)
                continue
            write_whole(target, found.as_csv())
            parts[f"table {name}"] = _table_part(found, records, questions, out, target)
        compared = interactive.plain(comparison.data(records) | {"far": plots.panels.far_loss(records.best)})
        page = {"figures": drawn, "comparison": compared, "scale": style.scale(),
                "ends": [style.DARKEST, style.LIGHTEST]}  # fmt: skip
        write_whole(written.report, _page(
            title=f"{records.name} - droptest report", heading=records.name, description=records.description,
            outcome=" ".join([f"{_outcome(records, brief=True)}.", *written.notes]), warnings=records.warnings,
            sections=list(_sections(records, parts, not_drawn, len(compared["points"]))),
            data=_in_script(page), plotly=_plotly(),
        ))  # fmt: skip
    except OSError as error:
        raise RecordError(f"{error.filename or out}: cannot write the report: {error.strerror}") from error
    written.warnings += [f"not drawn: {reason}" for reason in not_drawn.values()]
    return written


def write_figure(name: str, data: pd.DataFrame, folder: Path, described: dict[str, Any] | None = None) -> list[Path]:
    """Writes a figure's pictures and its numbers (CSV) to `folder`; returns their paths."""
    from droptest import pictures, plots, style

    paths = style.save(pictures.draw(described or plots.describe(name, data)), folder, name)
    write_whole(folder / f"{name}.csv", data.to_csv(index=False, lineterminator="\n"))
    return [*paths, folder / f"{name}.csv"]


def command(word: str, name: str, records: Records, questions: Questions = NO_QUESTIONS) -> str:
    """The command that makes a figure or a table again, with the questions that the table answers."""
    folder = shlex.quote(str(records.path))
    if word == "plot":
        return f"python3 -m droptest plot {name} {folder}"
    words = [f"python3 -m droptest table {folder} --name {name}"]
    if name == "seeds_needed" and tuple(questions.effects) != tuple(NO_QUESTIONS.effects):
        words += [f"--effect {effect!r}" for effect in questions.effects]
    if name == "equality" and questions.margin is not None:
        words.append(f"--equivalent {questions.margin!r}")
    return " ".join(words)


def write_whole(path: Path, text: str) -> None:
    """Writes a file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(text.encode("utf-8", "replace"))  # JSON can hold lone surrogates, which no file can
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_index(reports: list[tuple[Records, Written]], out: Path) -> Path:
    """Writes out/report.html, which lists the reports of several experiments."""
    rows = [
        {"target": relative(written.report, out), "name": records.name, "outcome": _outcome(records),
         "description": records.description}
        for records, written in reports
    ]  # fmt: skip
    heading = f"{len(reports)} experiments"
    write_whole(out / "report.html", _page(title=f"{heading} - droptest report", heading=heading, index=rows))
    return out / "report.html"


def relative(target: Path, folder: Path) -> str:
    """A relative link from a page in `folder`."""
    return quote(Path(os.path.relpath(target.resolve(), folder.resolve())).as_posix())


def _caption(module: ModuleType, data: pd.DataFrame) -> str:
    """The figure's caption with its remark, which the pictures have above their panels and the page's figures lack."""
    remark = data.attrs.get("remark")
    return f"{module.CAPTION} Remark: {remark}." if remark else module.CAPTION


def _is_tall(picture: Path) -> bool:
    """Whether a picture needs a page of its own on paper: two of them would be too small to read."""
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture.read_text(encoding="utf-8"))
    return size is not None and float(size[2]) > 1.1 * float(size[1])


def _links(paths: list[Path], out: Path) -> list[dict[str, str]]:
    return [{"name": path.suffix[1:].upper(), "target": relative(path, out)} for path in paths]


def _page(**content: Any) -> str:
    """The page of templates/report.html. All text of users is escaped, and shown without control characters."""
    import jinja2

    templates = files("droptest") / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (templates / name).read_text(encoding="utf-8")),
        autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined,
        finalize=lambda value: _visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
    )  # fmt: skip
    of_file = {name: jinja2.utils.markupsafe.Markup((templates / f"report.{extension}").read_text(encoding="utf-8"))
               for name, extension in (("css", "css"), ("script", "js"))}  # fmt: skip
    absent = dict.fromkeys(("description", "outcome", "warnings", "index", "sections", "data", "plotly"))
    for name in ("data", "plotly"):
        if name in content:
            content[name] = jinja2.utils.markupsafe.Markup(content[name])
    return environment.get_template("report.html").render(absent | of_file | content)


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _in_script(value: Any) -> str:
    """JSON that can stand in a script element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("&", "\\u0026")


@cache
def _plotly() -> str:
    """plotly.js of the package `plotly`, packed, which takes a second: the page unpacks it."""
    from plotly.offline import get_plotlyjs

    packed = gzip.compress(get_plotlyjs().encode("utf-8"), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode("ascii")


def _table_part(found: Table, records: Records, questions: Questions, out: Path, target: Path) -> dict[str, Any]:
    part = {
        "name": found.name, "title": found.title, "header": found.header, "rows": found.rows, "note": found.note,
        "numeric": [found.numeric(i) for i in range(len(found.header))], "links": None,
        "command": command("table", found.name, records, questions), "files": _links([target], out),
    }  # fmt: skip
    if found.name == "runs":
        part["links"] = [
            [{"target": relative(path / name, out), "name": name} for name in RUN_FILES if (path / name).is_file()]
            for path in records.runs["path"]
        ]
    return part


def _outcome(records: Records, brief: bool = False) -> str:
    """ "27 runs planned: 25 completed, 1 diverged, 1 failed"; of a program how many of its ranks are counted, and why
    not all of them, which is a warning, too, where it is brief."""
    if records.of_programs:
        why = {run.run_id: "" if brief or not run.error else f": {run.error}" for run in records.files.values()}
        return "; ".join(f"{_program_in_words(run)}{why[run.run_id]}" for run in records.files.values())
    statuses = records.runs["status"].value_counts()
    order = ("completed", "diverged", "failed", *ABSENT[1:], "missing", *OF_PROGRAMS)
    parts = ", ".join(f"{statuses[s]} {s}" for s in order if s in statuses)
    planned = f"{records.planned} runs planned" if records.planned is not None else _runs(len(records.runs))
    text = f"{planned}: {parts or 'none'}"
    if same := sum(run.listed - 1 for run in records.files.values()):
        text += f". The spec has {records.planned + same} pairs of point and seed; {same} share the run of another pair"
    return text


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _program_in_words(run: Run) -> str:
    """ "A program, all 2 ranks of which have written their counts"."""
    if run.status != COUNTED:
        return f"A program, {run.status}"
    return f"A program, all {run.loss_statistics['ranks']['world_size']} ranks of which have written their counts"


def _sections(
    records: Records, parts: dict[str, dict[str, Any]], not_drawn: dict[str, str], comparable: int
) -> Iterator[dict[str, Any]]:
    every = groups(records)
    for name, title, wanted in SECTIONS_OF_PROGRAMS if records.of_programs else SECTIONS:
        section = {
            "id": name, "title": title, "parts": [parts[part] for part in wanted if part in parts],
            "not_drawn": [not_drawn[part] for part in wanted if part in not_drawn],
            "findings": [], "folded": [], "notes": [], "definitions": [], "details": [],
        }  # fmt: skip
        if name == "tolerable":
            section["findings"] = list(_tolerable(records, every))
        elif name == "breaks":
            section["findings"] = list(_broken(records, every))
        elif name == "why":
            section["findings"] = list(_places(records))
        elif name == "time" and section["parts"]:
            section["findings"] = list(_break_evens(records))
        elif name == "wall":
            breakdowns = wall_time.breakdowns(records)
            section["folded"] = list(wall_time.findings(breakdowns))
            section["findings"] = wall_time.headlines(breakdowns) or section["folded"][:1]
        elif name == "seeds" and section["parts"]:
            section["notes"] = seeds.notes(records)
        elif name == "origin":
            section["definitions"], section["details"] = _provenance(records), list(_specs(records))
        if any(section[key] for key in ("parts", "not_drawn", "findings", "definitions")) or (
            name == "compare" and comparable > 1
        ):
            yield section


def _tolerable(records: Records, every: list[Group]) -> Iterator[str]:
    from droptest import plots
    from droptest.plots import tolerance

    if records.search is not None:
        yield records.search.in_words()
    try:
        data = plots.data("tolerance", records)
    except plots.NothingToDraw:
        return
    limit = data["tolerance"].iloc[0]
    yield ("The lossless twin of a run is the run without loss with the same seeds. Tolerable: the whole 95 % interval "
           f"of the difference to the twin's final validation loss is at most {limit:g} % of that loss.")  # fmt: skip
    yield from tolerance.findings(data)
    yield from _differences(every, records.unit)


def _differences(every: list[Group], unit: str) -> Iterator[str]:
    """The differences in words, one sentence per series, in numbers only."""
    for series in dict.fromkeys(g.series for g in every if not g.without_loss):
        own = [g for g in every if g.series == series and g.difference.n]
        if not own:
            continue
        worst = max(own, key=lambda g: g.loss_rate)
        twin = "the same compression without loss" if worst.compressed else "the lossless twin"
        text = f"{series}: at a packet loss rate of {percent(worst.loss_rate)} the final validation loss minus that of "
        text += f"{twin} is {with_interval(worst.difference, signed='+')} {unit}"
        clear = [g for g in own if g.difference.has_width and (g.difference.low > 0 or g.difference.high < 0)]
        with_width = [g for g in own if g.difference.has_width]
        if clear:
            first = min(clear, key=lambda g: g.loss_rate)
            if first is worst:
                smaller = len(with_width) == len(own) > 1
                text += "; the intervals of all smaller rates include 0" if smaller else "; its interval excludes 0"
            else:
                text += f"; the smallest rate with an interval that excludes 0 is {percent(first.loss_rate)} "
                text += f"({with_interval(first.difference, signed='+')})"
        elif with_width == [worst]:
            text += "; its interval includes 0"
        elif len(with_width) == len(own) > 1:
            text += "; the intervals of all rates include 0"
        elif with_width:
            rates = ", ".join(percent(g.loss_rate) for g in with_width)
            text += (
                f"; the interval at {rates} includes 0"
                if len(with_width) == 1
                else f"; the intervals at {rates} include 0"
            )
        yield text + "."


def _broken(records: Records, every: list[Group]) -> Iterator[str]:
    for group in every:
        if group.count("diverged"):
            yield (f"{group.series} at a packet loss rate of {percent(group.loss_rate)}: {group.count('diverged')} of "
                   f"{sum(group.statuses.values())} runs diverged.")  # fmt: skip
    absent = records.of_status("failed", *ABSENT)["status"].value_counts()
    diverged = len(records.of_status("diverged"))
    if others := diverged - sum(group.count("diverged") for group in every):
        yield f"Diverged runs of values that the summary does not show: {others}."
    if not diverged:
        yield "No run diverged."
    yield (
        f"Runs without a result: {', '.join(f'{count} {status}' for status, count in absent.items())}."
        if len(absent)
        else "Nothing is missing: every run has finished."
    )


def _places(records: Records) -> list[str]:
    from droptest import plots
    from droptest.plots import places

    try:
        return places.findings(plots.data("places", records))
    except plots.NothingToDraw:
        return []


def _break_evens(records: Records) -> Iterator[str]:
    target = virtual_time.default_target(records)
    if math.isfinite(target):
        for found in virtual_time.break_evens(virtual_time.curves(records, target)):
            yield (f"{found.tolerant} (tolerant network) compared with {found.reliable} (reliable network): "
                   f"{virtual_time.in_words(found)}.")  # fmt: skip


def _specs(records: Records) -> Iterator[tuple[str, str]]:
    if records.of_programs:
        for run in records.files.values():
            of_network = {key: run.loss_statistics[key] for key in ("network", "ranks") if key in run.loss_statistics}
            if of_network:
                yield "Network", json.dumps(of_network, indent=2, ensure_ascii=False)
        return
    given = "Spec as given" if records.planned is not None else "Spec"
    yield given, json.dumps(records.spec, indent=2, ensure_ascii=False)
    resolved = next((run for run in records.files.values() if run.spec and run.spec is not records.spec), None)
    if resolved is not None:
        yield f"Resolved spec of run {resolved.run_id}", json.dumps(resolved.spec, indent=2, ensure_ascii=False)


def _provenance(records: Records) -> list[tuple[str, str]]:
    """Each key of the runs' provenance with its values; times as first and last."""
    seen: dict[str, dict[str, int]] = {}
    for run in records.files.values():
        for key, value in object_of(run.summary.get("provenance")).items():
            text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
            counts = seen.setdefault(key, {})
            counts[text or "not given"] = counts.get(text or "not given", 0) + 1
    pairs = [("folder", str(records.path))]
    if not records.of_programs:
        pairs.append(("varied", ", ".join(records.varied) or "seed only"))
    for key, counts in seen.items():
        if key in ("started", "finished"):
            pairs.append((key, min(counts) if key == "started" else max(counts)))
        elif len(counts) == 1:
            pairs.append((key, next(iter(counts))))
        else:
            pairs.append((key, "; ".join(f"{text} ({_runs(count)})" for text, count in counts.items())))
    return pairs
