# SPDX-License-Identifier: Apache-2.0
"""The data frames of an experiment; records.Records describes their columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from droptest.files import Run, object_of
from droptest.loss_places import places_and_rests
from droptest.pointers import canonical
from droptest.run_rows import NAN, number, objects
from droptest.search import Search
from droptest.series import SeriesNamer, compresses, has_recovery
from droptest.twins import transforms, twin_key

KEYS = ("run_id", "series", "label", "loss_rate", "seed")  # the first columns of every frame but `runs`


def _find_twins(runs: list[Run], namer: SeriesNamer) -> dict[str, str]:
    """run_id of each lossy run -> run_id of the run that loses nothing, with the same spec and seeds of weights and
    data."""
    keys = {run.run_id: twin_key(run, namer.moved) for run in runs if run.seeds is not None}
    # Runs without loss by key and training, those of equal settings together, each with its place and network's seed.
    without_loss: dict[tuple[str, tuple[int, int]], dict[Any, dict[int, tuple[int, Run]]]] = {}
    for place, run in enumerate(runs):
        key = keys.get(run.run_id)
        if key is not None and run.status not in ("unreadable", "missing") and namer.loses_nothing(run):
            settings = (canonical(transforms(run.spec)), namer.settings_key(run))
            alike = without_loss.setdefault((key, run.seeds[:2]), {}).setdefault(settings, {})
            alike.setdefault(run.seeds[2], (place, run))
    twins = {}
    for run in runs:
        key = keys.get(run.run_id)
        if key is None or namer.loses_nothing(run):
            continue
        # Without loss the network's seed changes at most signs of a transform, but equal ones make the nicer pair.
        candidates = [
            alike.get(run.seeds[2]) or next(iter(alike.values()))
            for alike in without_loss.get((key, run.seeds[:2]), {}).values()
        ]
        if candidates:
            _, twin = max(
                candidates,
                key=lambda found: (
                    transforms(run.spec) == transforms(found[1].spec),
                    not transforms(found[1].spec),
                    namer.same_settings(run, found[1]),
                    run.seeds == found[1].seeds,
                    -found[0],
                ),
            )
            twins[run.run_id] = twin.run_id
    return twins


def _find_bare(runs: list[Run], namer: SeriesNamer) -> dict[str, str]:
    """run_id of each lossy run -> run_id of the run with the same spec and seeds that recovers nothing."""
    lossy = [
        run for run in runs
        if run.spec and run.seeds and run.status not in ("unreadable", "missing") and not namer.loses_nothing(run)
    ]  # fmt: skip
    keys = {run.run_id: (_key_without_recovery(run, namer), run.seeds) for run in lossy}
    bare = {keys[run.run_id]: run.run_id for run in lossy if not has_recovery(run)}
    return {run_id: bare[key] for run_id, key in keys.items() if key in bare}


def _key_without_recovery(run: Run, namer: SeriesNamer) -> str:
    bare = lambda part: {k: bare(v) if isinstance(v, dict) else v for k, v in part.items()  # noqa: E731
                         if k not in ("recovery", "retransmission")}  # fmt: skip
    return canonical(
        [twin_key(run, (*namer.moved, "/network")), *(bare(object_of(run.spec.get(k))) for k in ("network", "time"))]
    )


def _key_of(run: Run, namer: SeriesNamer) -> dict[str, Any]:
    """The values of the run that its rows have in every frame, but for its seed."""
    return {"run_id": run.run_id, "series": namer.series(run), "label": namer.labels(run),
            "loss_rate": namer.rate(run), **namer.values(run)}  # fmt: skip


def _run_row(run: Run, namer: SeriesNamer, key: Mapping[str, Any], place_and_rest: tuple[str, str]) -> dict[str, Any]:
    """A row of `runs`. key: of _key_of()."""
    summary = run.summary
    validation, train = object_of(summary.get("validation")), object_of(summary.get("train"))
    usable = run.status in ("completed", "diverged")
    return {
        **{column: key[column] for column in KEYS if column in key},
        "training": run.seeds[:2] if run.seeds else run.run_id,
        "network_seed": run.seeds[2] if run.seeds else run.run_id,
        "status": run.status,
        "error": run.error,
        "lossless": namer.lossless(run),
        "without_loss": namer.loses_nothing(run),
        "compressed": compresses(run),
        "reliable": namer.reliable(run),
        "marks": ", ".join(mark for mark, _ in run.marks),
        "loss_model": namer.model_label(run),
        "mean_burst_packets": namer.mean_burst_packets(run),
        "final_validation_loss": number(validation.get("final_loss")) if run.status == "completed" else NAN,
        "selection_loss": number(validation.get("selection_loss")) if run.status == "completed" else NAN,
        "best_validation_loss": number(validation.get("best_loss")) if usable else NAN,
        "final_train_loss": number(train.get("final_loss")) if run.status == "completed" else NAN,
        "diverged_step": number(summary.get("diverged_step")),
        "skipped_steps": number((summary.get("loss_scale") or {}).get("skipped_steps")),
        "steps": number(summary.get("steps")),
        "last_step": number(run.last_step),
        "tokens": number(summary.get("tokens")),
        "tokens_per_second": number(summary.get("tokens_per_second")),
        "seconds": number(summary.get("seconds")),
        "path": run.path,
        "point": run.point,
        "best_value": namer.best_value(run),
        "idle": ", ".join(dict.fromkeys(text.split(": ")[0] for text in run.idle)),
        "same_points": namer.same_points(run),
        **dict(zip(("place", "rest"), place_and_rest, strict=True)),
        **{pointer: key[pointer] for pointer in namer.varied},
    }


def _seed_labels(runs: list[Run]) -> dict[str, int | str | None]:
    """A name for the seeds of each run: one number where the three agree in all runs, else all three."""
    one_each = all(run.seeds is None or len(set(run.seeds)) == 1 for run in runs)
    return {
        run.run_id: None if run.seeds is None else run.seeds[0] if one_each
        else "weights {}, data {}, network {}".format(*run.seeds)
        for run in runs
    }  # fmt: skip


def frames_of(
    path: Path, runs: list[Run], search: Search | None, namer: SeriesNamer, rows: dict[str, dict[str, np.ndarray]]
) -> dict[str, pd.DataFrame]:
    """The frames of `Records` by name, each with its columns in a frame without rows too.

    rows: the columns of the other frames but `searches`, without those that the namer gives (RunRows.columns); they
        are taken out of it.
    """
    seeds = _seed_labels(runs)
    keys = [_key_of(run, namer) for run in runs]
    nothing = Run("", path)
    no_name = SeriesNamer([nothing])
    columns = [*_run_row(nothing, no_name, _key_of(nothing, no_name), ("", "")), *namer.varied]
    places = places_and_rests(runs, namer)
    frame = pd.DataFrame([_run_row(run, namer, key, places[run.run_id]) for run, key in zip(runs, keys, strict=True)],
                         columns=columns)  # fmt: skip
    frame.insert(frame.columns.get_loc("loss_rate") + 1, "seed",
                 pd.Series([seeds[i] for i in frame["run_id"]], dtype=object))  # fmt: skip
    twins = _find_twins(runs, namer)
    final = dict(zip(frame["run_id"], frame["final_validation_loss"], strict=True))
    frame["twin"] = [twins.get(run_id) for run_id in frame["run_id"]]
    bare = _find_bare(runs, namer)
    frame["bare"] = [bare.get(run_id) for run_id in frame["run_id"]]
    frame["difference"] = [final[i] - final[twins[i]] if i in twins else NAN for i in frame["run_id"]]
    keyed = [*KEYS, *namer.varied]
    of_runs = {column: objects([key.get(column, seeds[key["run_id"]]) for key in keys]) for column in keyed[1:]}
    of_runs["loss_rate"] = of_runs["loss_rate"].astype(float)
    place_of = pd.Index([run.run_id for run in runs])
    frames = {kind: _with_keys(rows.pop(kind), of_runs, place_of) for kind in list(rows)}
    return frames | {"runs": frame, "searches": _searches(search, frame, keyed)}


def _with_keys(rows: Mapping[str, np.ndarray], of_runs: Mapping[str, np.ndarray], place_of: pd.Index) -> pd.DataFrame:
    """A frame with the columns of its rows' runs. of_runs: their values by column, at the places of the run_ids."""
    places = place_of.get_indexer(rows["run_id"])
    of_rows = {name: values.take(places) for name, values in of_runs.items()}
    return pd.DataFrame({"run_id": rows["run_id"], **of_rows, **rows}).infer_objects()


def _searches(search: Search | None, runs: pd.DataFrame, keyed: list[str]) -> pd.DataFrame:
    """The runs of a search with the rate that they judged."""
    columns = ["rate", "verdict", "mean", "low", "high", "difference"]
    whole = ["tolerance", "threshold", "threshold_low", "threshold_high"]
    if search is None:
        return pd.DataFrame(columns=[*keyed, *columns, *whole])
    rows = [
        (run_id, judged.rate, judged.verdict, judged.mean, judged.low, judged.high, difference,
         search.tolerance_percent, search.threshold, search.low, search.high)
        for judged in search.judged for run_id, difference in judged.runs
    ]  # fmt: skip
    found = pd.DataFrame(rows, columns=["run_id", *columns, *whole])
    numbers = dict.fromkeys([c for c in (*columns, *whole) if c != "verdict"], float)
    return runs[keyed].merge(found.astype(numbers), on="run_id", how="right")
