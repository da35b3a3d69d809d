# SPDX-License-Identifier: Apache-2.0
"""Runs -> Weights & Biases, through its own client in offline mode (docs/watching.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from droptest.files import RecordError, Run, object_of, read_json, read_run
from droptest.loss_model import from_spec, probability
from droptest.pointers import short_names
from droptest.records import experiments_in, names_of
from droptest.series import is_loss, value_words


def client() -> ModuleType:
    """The package wandb. Raises: RecordError where it is not installed."""
    try:
        return import_module("wandb")
    except ModuleNotFoundError as error:
        raise RecordError(
            "wandb: no such Python package; install it where the report runs ($DROPTEST_PYTHON): pip install wandb"
        ) from error


def flat(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in an object by their paths: ("divergence/max", 0.1). Null stands for a number that is not finite."""
    if isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for key, member in members:
            yield from flat(member, f"{name}/{key}" if name else str(key))
    elif value is None:
        yield name, math.nan
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def hyperparameters(value: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """Members of a point's objects by their pointers; percentages are fractions, so that they sort as numbers."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from hyperparameters(member, f"{pointer}/{key}" if pointer else key)
        return
    if isinstance(value, str) and value.endswith("%"):
        try:
            yield pointer, probability(value)
            return
        except ValueError:
            pass
    yield pointer, value


def _words(point: dict[str, Any], names: Mapping[str, str]) -> str:
    """A point as text, in the order of the names: "loss: Bernoulli 5 %, fill: zero"."""
    names = {pointer: name for pointer, name in names.items() if pointer in point}
    names |= short_names([pointer for pointer in point if pointer not in names])
    return ", ".join(f"{name}: {_value(point[pointer])}" for pointer, name in names.items()) or "-"


def _value(value: Any) -> str:
    return from_spec(value).words if is_loss(value) else value_words(value)


def export_run(wandb: ModuleType, run: Run, experiment: str, folder: Path, names: Mapping[str, str]) -> None:
    """One run of the client, in offline mode: its lines, its summary, its marks as tags, and its state at the end.

    names: of the swept pointers, as sweep.json has them.
    """
    seed = "-" if run.seeds is None else str(run.seeds[2])
    group = _words(run.point, names)
    session = wandb.init(
        project=experiment, id=run.run_id, name=f"{group}, seed {seed}", group=group, mode="offline", dir=str(folder),
        tags=[mark for mark, _ in run.marks],
        config={**dict(hyperparameters(run.point)), "seed": seed, "spec": run.spec},
    )  # fmt: skip
    for line in run.metrics:
        session.log({name: value for name, value in flat(line) if name != "step"}, step=line["step"])
    for name in ("train", "validation", "tokens_per_second", "seconds"):
        session.summary.update(dict(flat(run.summary.get(name, {}), name)))
    for of_class, counts in object_of(run.loss_statistics.get("classes")).items():
        for name in ("configured_rate", "realised_rate", "z"):
            session.summary.update(dict(flat(counts.get(name), f"{name}/{of_class}")))
    session.finish(exit_code=1 if run.status == "failed" else 0)


def export(folder: str | Path, out: str | Path | None = None) -> list[str]:
    """Writes the runs with lines in `folder`, of one run or of experiments, for `wandb sync`; returns their ids.

    out: the folder that gets the folder "wandb"; default: `folder`. Nothing is sent to any server.
    Raises: RecordError where the package wandb is absent, or no run has a line.
    """
    folder = Path(folder)
    runs = []
    for experiment in experiments_in(folder):
        own = read_run(experiment)
        if own.last_step is not None:
            runs.append((experiment.resolve().parent.name, own, _names_in(experiment.resolve().parent)))
            continue
        names = _names_in(experiment)
        found = [read_run(path) for path in sorted(experiment.iterdir()) if path.is_dir()]
        runs += [(experiment.resolve().name, run, names) for run in found if run.last_step is not None]
    if not runs:
        raise RecordError(f"{folder}: no run with a line in metrics.jsonl; want results/<name>, or a run's folder")
    wandb = client()
    out = Path(out) if out is not None else folder
    out.mkdir(parents=True, exist_ok=True)
    for experiment, run, names in runs:
        export_run(wandb, run, experiment, out, names)
    return [run.run_id for _, run, _ in runs]


def _names_in(folder: Path) -> dict[str, str]:
    sweep = folder / "sweep.json"
    return names_of(read_json(sweep), folder) if sweep.is_file() else {}
