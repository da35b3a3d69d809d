# SPDX-License-Identifier: Apache-2.0
"""Command line: python3 -m droptest report | table | power | plot | wandb | fates, which never calls the compiled
program; as `droptest`, which pip installs, it becomes the compiled program for all other commands, and for fates where
there is one."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from droptest.extras import REPORT, how_to_install
from droptest.program import CommandError, NoProgram, become

NEEDED = ("numpy", *REPORT)
PACKAGES = " ".join(f"python3-{name}" for name in NEEDED)
EXAMPLES = """examples:
  python3 -m droptest report results/quickstart            plots and report.html in the records' folder
  python3 -m droptest report results --out /tmp/reports    every experiment in results
  python3 -m droptest table results/quickstart --json      the summary, for programs
  python3 -m droptest power results/quickstart --effect 0.01 --equivalent 0.02
                                                           seeds that an effect needs, and what is equal
  python3 -m droptest plot final_loss results/quickstart   one figure
  python3 -m droptest report results/sections --measure mine.py:kappa
                                                           a measure of classifiers of your own
  python3 -m droptest fates --loss '{"model": "bernoulli", "loss_rate": "5%"}' --class dp_gradient --count 1000
                                                           which packets of a link are lost
"""


OTHERS = "All other commands are those of the compiled program, which `droptest` calls: run, sweep, list, ..."
OF_PACKAGE = ("report", "table", "power", "plot", "wandb")


def parser(prog: str) -> argparse.ArgumentParser:
    import droptest
    from droptest import link_fates

    result = argparse.ArgumentParser(
        prog=prog, description=f"Records of droptest -> statistics -> plots -> report. {OTHERS}",
        epilog=EXAMPLES.replace("python3 -m droptest", prog), formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    result.add_argument("--version", action="version", version=droptest.__version__)
    result.set_defaults(needed=NEEDED)
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    folder = {"type": Path, "metavar": "DIR", "help": "results/<name>, one run's folder, or a folder of experiments"}

    report = commands.add_parser("report", help="draw the plots and write report.html")
    report.add_argument("folder", **folder)
    report.add_argument("--out", type=Path, metavar="OUT", help="where to write (default: DIR)")
    add_questions(report)
    add_measures(report)
    report.set_defaults(run=run_report)

    table = commands.add_parser("table", help="print the summary, or another table of the report")
    table.add_argument("folder", **folder)
    table.add_argument("--json", action="store_true", help="the summary as JSON")
    table.add_argument("--name", metavar="NAME", help="tolerance, summary, loss_statistics, runs, ... as CSV")
    add_questions(table)
    add_measures(table)
    table.set_defaults(run=run_table)

    power = commands.add_parser("power", help="how many seeds an effect needs, and what is equal within a margin")
    power.add_argument("folder", **folder)
    add_questions(power)
    power.set_defaults(run=run_power)

    plot = commands.add_parser("plot", help="draw one figure, as PNG and SVG, with its numbers as CSV")
    plot.add_argument("name", metavar="NAME", help="final_loss, training_curves, divergence, burst_lengths, ...")
    plot.add_argument("folder", **folder)
    plot.add_argument("--out", type=Path, metavar="OUT", help="where to write (default: DIR/plots)")
    add_measures(plot)
    plot.set_defaults(run=run_plot)

    wandb = commands.add_parser("wandb", help="write runs for wandb sync, through W&B's client in offline mode")
    wandb.add_argument("folder", **folder)
    wandb.add_argument("--out", type=Path, metavar="OUT", help="where to write the folder wandb (default: DIR)")
    wandb.set_defaults(run=run_wandb)

    fates = commands.add_parser("fates", help="print which packets of a link are lost", allow_abbrev=False)
    link_fates.add_options(fates)
    fates.set_defaults(run=run_fates, needed=("numpy",))
    return result


def nats(text: str) -> float:
    """A loss difference of the command line."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"got {text!r}, want a number of nats above 0")
    return value


def add_questions(command: argparse.ArgumentParser) -> None:
    seen = "how many seeds it takes to see a difference of D nats; may be given again"
    equal = "which results are equal within D nats; compares series with each other, too"
    command.add_argument("--effect", type=nats, action="append", metavar="D", help=seen)
    command.add_argument("--equivalent", type=nats, metavar="D", help=equal)


def add_measures(command: argparse.ArgumentParser) -> None:
    text = "a function of (labels, predictions) of classifiers, shown next to accuracy; may be given again"
    command.add_argument("--measure", action="append", default=[], metavar="FILE.py:NAME", help=text)


def with_measures(records: list, arguments: argparse.Namespace) -> list:
    """The records, which know the measures of the command line. Raises: RecordError."""
    from droptest.classification import own_measure

    measures = tuple(own_measure(text) for text in arguments.measure)
    for one in records:
        one.own_measures = measures
    return records


def questions_of(arguments: argparse.Namespace):
    from droptest.seeds import EFFECTS
    from droptest.tables import Questions

    return Questions(tuple(arguments.effect or EFFECTS), arguments.equivalent)


def warn(warnings: list[str]) -> None:
    for warning in warnings:
        print(f"warning: {''.join(c if c.isprintable() else '?' for c in warning)}")


def run_report(arguments: argparse.Namespace) -> int:
    from droptest import wall_time
    from droptest.records import experiments_in, load
    from droptest.report import write_index, write_report
    from droptest.summary import text_table

    folders = experiments_in(arguments.folder)
    several = folders != [arguments.folder]
    reports = []
    for folder in folders:
        (records,) = with_measures([load(folder)], arguments)
        out = arguments.out or folder
        if several and arguments.out:
            out = arguments.out / folder.name
        written = write_report(records, out, questions_of(arguments))
        reports.append((records, written))
        if several:
            print(f"== {records.name}")
        print(text_table(records))
        print()
        if times := wall_time.text_table(records):
            print(times)
            print()
        warn(written.warnings)
        for note in written.notes:
            print(f"note:   {note}")
        for path in [p for p in written.plots if p.suffix == ".png"]:
            print(f"plot:   {path} (and .svg, .csv)")
        print(f"report: {written.report}")
    if several:
        print(f"all:    {write_index(reports, arguments.out or arguments.folder)}")
    return 0


def run_table(arguments: argparse.Namespace) -> int:
    from droptest.records import load_all
    from droptest.summary import as_json, groups, text_table

    experiments = with_measures(load_all(arguments.folder), arguments)
    if arguments.name is not None:
        return print_tables(arguments, experiments)
    if arguments.json:
        value = [{"name": r.name, "warnings": r.warnings, "points": [as_json(g) for g in groups(r)]}
                 for r in experiments]  # fmt: skip
        print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
        return 0
    for records in experiments:
        if len(experiments) > 1:
            print(f"== {records.name}")
        print(text_table(records))
        warn(records.warnings)
    return 0


def print_tables(arguments: argparse.Namespace, experiments: list) -> int:
    """One of the report's tables, of each experiment, as CSV."""
    from droptest.files import RecordError
    from droptest.tables import TABLES, table

    if arguments.name not in TABLES:
        raise RecordError(f"table: got {arguments.name!r}, want one of {', '.join(TABLES)}")
    for records in experiments:
        found = table(arguments.name, records, questions_of(arguments))
        if found is None:
            raise RecordError(f"table {arguments.name}: {records.path} has nothing for it")
        print(found.as_csv(), end="")
    return 0


def run_power(arguments: argparse.Namespace) -> int:
    from droptest import seeds
    from droptest.records import load_all
    from droptest.summary import aligned

    questions = questions_of(arguments)
    experiments = load_all(arguments.folder)
    for records in experiments:
        if len(experiments) > 1:
            print(f"== {records.name}")
        plan = seeds.plan_table(records, questions.effects)
        if not plan[1]:
            print("no point has two finished pairs with a lossless run, which variances and tests need")
            continue
        tables = (seeds.spread_table(records), plan, seeds.comparison_table(records, questions.margin))
        for header, rows in tables:
            if rows:
                print(aligned(header, rows, {"series", "against", "quantity"}), end="\n\n")
        for note in [*seeds.notes(records), seeds.EXPLANATION]:
            print(note)
    return 0


def run_plot(arguments: argparse.Namespace) -> int:
    from droptest import plots
    from droptest.records import RecordError, load
    from droptest.report import write_figure

    if arguments.name not in plots.FIGURES:
        raise RecordError(f"plot: got {arguments.name!r}, want one of {', '.join(plots.FIGURES)}")
    (records,) = with_measures([load(arguments.folder)], arguments)
    try:
        data = plots.data(arguments.name, records)
    except plots.NothingToDraw as reason:
        raise RecordError(f"plot {arguments.name}: nothing to draw: {reason}") from reason
    warn(records.warnings)
    for path in write_figure(arguments.name, data, arguments.out or arguments.folder / "plots"):
        print(f"plot:   {path}")
    return 0


def run_wandb(arguments: argparse.Namespace) -> int:
    from droptest.wandb_export import export

    runs = export(arguments.folder, arguments.out)
    out = arguments.out or arguments.folder
    print(f"wrote {len(runs)} run{'' if len(runs) == 1 else 's'}; next: wandb sync {out}/wandb/offline-run-*")
    return 0


def run_fates(arguments: argparse.Namespace) -> int:
    from droptest import link_fates

    found = link_fates.answer(link_fates.question_of(arguments), arguments.no_program)
    for text in link_fates.text_of(found, arguments.format):
        sys.stdout.write(text)
    return 0


class OutlivesReader:
    """Standard output that is dropped once nobody reads it, as in `droptest report RESULTS | head`."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        try:
            self.stream.write(text)
            self.stream.flush()
        except BrokenPipeError:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self.stream.fileno())
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def command() -> int:
    """The command `droptest` that pip installs: a command of this package, or of the compiled program."""
    words = sys.argv[1:]
    if not words or words[0].startswith("-") or words[0] in OF_PACKAGE:
        return main(words, "droptest")
    try:
        become(words)
    except NoProgram as error:
        if words[0] == "fates":
            return main(words, "droptest", error)
        problem = error
    except CommandError as error:
        problem = error
    print(f"droptest: error: {words[0]}: a command of the compiled program: {problem}", file=sys.stderr)
    return 2


def main(
    arguments: list[str] | None = None, prog: str = "python3 -m droptest", no_program: NoProgram | None = None
) -> int:
    """Runs a command. no_program: why there is no compiled program. Returns: 0, or 2 where the records or the arguments
    cannot be used."""
    if _lacks(("numpy",)):
        return 2
    parsed = parser(prog).parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # a name that the terminal cannot show must not stop the report
    if _lacks(parsed.needed):
        return 2
    from droptest.files import RecordError

    parsed.no_program = no_program or CommandError("`python3 -m droptest` never calls it, the command `droptest` does")
    try:
        with redirect_stdout(OutlivesReader(sys.stdout)):
            return parsed.run(parsed)
    except (RecordError, CommandError) as error:
        print(f"droptest: error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"droptest: error: {error.filename or arguments}: {error.strerror}", file=sys.stderr)
    return 2


def _lacks(needed: Sequence[str]) -> bool:
    """Whether a package is not there; says which, and how to install it."""
    absent = [name for name in needed if find_spec(name) is None]
    if absent:
        hint = f"{how_to_install('report')}; or install Debian's {PACKAGES} and use /usr/bin/python3"
        print(f"droptest: error: {sys.executable} has no {', '.join(absent)}; {hint}", file=sys.stderr)
    return bool(absent)


if __name__ == "__main__":
    sys.exit(main())
