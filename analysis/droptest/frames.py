# SPDX-License-Identifier: Apache-2.0
"""The data frames of an experiment; records.Records describes their columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from droptest import loss_model
from droptest.files import Run, object_of
from droptest.loss_places import places_and_rests
from droptest.pointers import canonical
from droptest.search import Search
from droptest.series import LOSSLESS, SeriesNamer, compresses, has_deadline, has_recovery
from droptest.twins import transforms, twin_key

NAN = float("nan")
METRIC_COLUMNS = (
    "tokens", "seconds", "virtual_seconds", "train_loss", "learning_rate", "gradient_norm", "validation_loss",
)  # fmt: skip
COUNT_COLUMNS = (
    "messages", "packets", "bytes", "lost", "lost_bytes", "configured_rate", "realised_rate", "z",
    "mean_burst_packets", "configured_mean_burst_packets",
)  # fmt: skip
CLASS_COLUMNS = ("collectives", "untouched_share", "nmse", "cosine", "divergence_max", "divergence_rms")
LAYER_COLUMNS = (
    "steps", "untouched_share", "sampled_calls", "error_energy", "exact_energy", "bias", "nmse", "cosine",
    "divergence_max", "divergence_rms",
)  # fmt: skip
# Measures of sampled calls, and of packets. Older records have 0, and 1 for the cosine, where nothing was measured.
SAMPLED_COLUMNS = ("bias", "nmse", "cosine", "divergence_max", "divergence_rms")
PACKET_COLUMNS = ("configured_rate", "realised_rate", "z")
TIME_COLUMNS = (
    "virtual_seconds", "compute_seconds", "idle_seconds", "exposed_seconds", "network_seconds", "packets",
    "repeated_packets", "timeouts", "late_packets",
)  # fmt: skip
RECOVERY_COLUMNS = ("packets", "lost", "repaired", "residual", "residual_bytes", "resent", "resend_rounds")
LINK_COLUMNS = ("packets", "lost", "realised_rate", "z", "mean_burst_packets")
NUMBERS = frozenset({
    *METRIC_COLUMNS, *COUNT_COLUMNS, *CLASS_COLUMNS, *LAYER_COLUMNS, *TIME_COLUMNS, *RECOVERY_COLUMNS, "late_rate",
    "loss_rate", "max", "rms", "expected",
})  # fmt: skip


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else NAN


def _measured(counts: Mapping[str, Any], columns: Sequence[str]) -> dict[str, float]:
    """Columns of a class, half, link or layer; NaN for measures of calls that were not sampled, or of no packets."""
    unknown = (*(SAMPLED_COLUMNS if counts.get("sampled_calls") == 0 else ()),
               *(PACKET_COLUMNS if counts.get("packets") == 0 else ()))  # fmt: skip
    return {column: NAN if column in unknown else _number(counts.get(column)) for column in columns}


def _find_twins(runs: list[Run], namer: SeriesNamer) -> dict[str, str]:
    """run_id of each lossy run -> run_id of the run that loses nothing, with the same spec and seeds of weights and
    data."""
    keys = {run.run_id: twin_key(run, namer.moved) for run in runs if run.seeds is not None}
    without_loss: dict[tuple[str, tuple[int, int]], list[Run]] = {}
    for run in runs:
        key = keys.get(run.run_id)
        if key is not None and run.status != "unreadable" and namer.loses_nothing(run):
            without_loss.setdefault((key, run.seeds[:2]), []).append(run)
    twins = {}
    for run in runs:
        key = keys.get(run.run_id)
        if key is None or namer.loses_nothing(run):
            continue
        candidates = without_loss.get((key, run.seeds[:2]), [])
        if candidates:
            # Without loss the network's seed changes at most signs of a transform, but equal ones make the nicer pair.
            twins[run.run_id] = max(
                candidates,
                key=lambda other: (
                    transforms(run.spec) == transforms(other.spec),
                    not transforms(other.spec),
                    namer.same_settings(run, other),
                    run.seeds == other.seeds,
                ),
            ).run_id
    return twins


def _find_bare(runs: list[Run], namer: SeriesNamer) -> dict[str, str]:
    """run_id of each lossy run -> run_id of the run with the same spec and seeds that recovers nothing."""
    lossy = [
        run for run in runs if run.spec and run.seeds and run.status != "unreadable" and not namer.loses_nothing(run)
    ]
    keys = {run.run_id: (_key_without_recovery(run, namer), run.seeds) for run in lossy}
    bare = {keys[run.run_id]: run.run_id for run in lossy if not has_recovery(run)}
    return {run_id: bare[key] for run_id, key in keys.items() if key in bare}


def _key_without_recovery(run: Run, namer: SeriesNamer) -> str:
    bare = lambda part: {k: bare(v) if isinstance(v, dict) else v for k, v in part.items()  # noqa: E731
                         if k not in ("recovery", "retransmission")}  # fmt: skip
    return canonical(
        [twin_key(run, (*namer.moved, "/network")), *(bare(object_of(run.spec.get(k))) for k in ("network", "time"))]
    )


def _run_row(run: Run, namer: SeriesNamer, places: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    summary = run.summary
    validation, train = object_of(summary.get("validation")), object_of(summary.get("train"))
    usable = run.status in ("completed", "diverged")
    return {
        "run_id": run.run_id,
        "series": namer.series(run),
        "label": namer.labels(run),
        "loss_rate": namer.rate(run),
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
        "final_validation_loss": _number(validation.get("final_loss")) if run.status == "completed" else NAN,
        "selection_loss": _number(validation.get("selection_loss")) if run.status == "completed" else NAN,
        "best_validation_loss": _number(validation.get("best_loss")) if usable else NAN,
        "final_train_loss": _number(train.get("final_loss")) if run.status == "completed" else NAN,
        "diverged_step": _number(summary.get("diverged_step")),
        "skipped_steps": _number((summary.get("loss_scale") or {}).get("skipped_steps")),
        "steps": _number(summary.get("steps")),
        "last_step": _number(run.metrics[-1]["step"]) if run.metrics else NAN,
        "tokens": _number(summary.get("tokens")),
        "tokens_per_second": _number(summary.get("tokens_per_second")),
        "seconds": _number(summary.get("seconds")),
        "path": run.path,
        "point": run.point,
        "best_value": namer.best_value(run),
        "idle": ", ".join(dict.fromkeys(text.split(": ")[0] for text in run.idle)),
        "same_points": namer.same_points(run),
        **dict(zip(("place", "rest"), places[run.run_id], strict=True)),
        **namer.values(run),
    }


def _seed_labels(runs: list[Run]) -> dict[str, int | str | None]:
    """A name for the seeds of each run: one number where the three agree in all runs, else all three."""
    one_each = all(run.seeds is None or len(set(run.seeds)) == 1 for run in runs)
    return {
        run.run_id: None if run.seeds is None else run.seeds[0] if one_each
        else "weights {}, data {}, network {}".format(*run.seeds)
        for run in runs
    }  # fmt: skip


def frames_of(path: Path, runs: list[Run], search: Search | None, namer: SeriesNamer) -> dict[str, pd.DataFrame]:
    """The frames of `Records` by name, each with its columns in a frame without rows too."""
    seeds = _seed_labels(runs)
    keys = {run.run_id: {"series": namer.series(run), "label": namer.labels(run), "loss_rate": namer.rate(run),
                         "seed": seeds[run.run_id], **namer.values(run)}
            for run in runs}  # fmt: skip
    rows: dict[str, list[dict[str, Any]]] = {
        kind: []
        for kind in ("metrics", "divergence", "samples", "loss_statistics", "bursts", "layers", "gaps", "links", "time",
                     "recoveries", "wall_seconds")
    }  # fmt: skip
    for run in runs:
        key = {"run_id": run.run_id, **keys[run.run_id]}
        if run.status == "unreadable":
            continue
        for line in run.metrics:
            _add_metrics(rows, key, line)
        _add_wall_seconds(rows, key, run.metrics)
        for traffic_class, statistics in object_of(run.loss_statistics.get("classes")).items():
            _add_class(rows, key, traffic_class, object_of(statistics))
        for traffic_class, diagnostics in object_of(run.diagnostics.get("classes")).items():
            _add_diagnostics(rows, {**key, "class": traffic_class}, object_of(diagnostics))
        if run.summary.get("time"):
            _add_time(rows, key, run)
        for link in run.loss_statistics.get("links") or ():
            ends = {column: link.get(column) for column in ("class", "half", "source", "destination")}
            rows["links"].append({**key, **ends, **{c: _number(link.get(c)) for c in LINK_COLUMNS}})
    nothing = Run("", path)
    named = list(_run_row(nothing, SeriesNamer([nothing]), {"": ("", "")}))
    places = places_and_rests(runs, namer)
    frame = pd.DataFrame([_run_row(run, namer, places) for run in runs], columns=[*named, *namer.varied])
    frame.insert(frame.columns.get_loc("loss_rate") + 1, "seed",
                 pd.Series([seeds[i] for i in frame["run_id"]], dtype=object))  # fmt: skip
    twins = _find_twins(runs, namer)
    final = dict(zip(frame["run_id"], frame["final_validation_loss"], strict=True))
    frame["twin"] = [twins.get(run_id) for run_id in frame["run_id"]]
    bare = _find_bare(runs, namer)
    frame["bare"] = [bare.get(run_id) for run_id in frame["run_id"]]
    frame["difference"] = [final[i] - final[twins[i]] if i in twins else NAN for i in frame["run_id"]]
    keyed = ["run_id", "series", "label", "loss_rate", "seed", *namer.varied]
    columns = {
        "metrics": [*keyed, "step", *METRIC_COLUMNS, "divergence_max", "divergence_rms"],
        "divergence": [*keyed, "step", "group", "max", "rms"],
        "samples": [*keyed, "step", "class", "nmse", "cosine"],
        "loss_statistics": [*keyed, "class", "half", *COUNT_COLUMNS, *CLASS_COLUMNS, "path", "loss", "fill", "digest"],
        "bursts": [*keyed, "class", "half", "length", "count", "expected"],
        "layers": [*keyed, "class", "layer", *LAYER_COLUMNS],
        "gaps": [*keyed, "class", "half", "from", "to", "count", "expected"],
        "links": [*keyed, "class", "half", "source", "destination", *LINK_COLUMNS],
        "time": [*keyed, *TIME_COLUMNS, "late_rate"],
        "recoveries": [*keyed, "class", "half", "policy", *RECOVERY_COLUMNS],
        "wall_seconds": [*keyed, "rank", "kind", "name", "seconds"],
    }
    frames = {kind: _typed(pd.DataFrame(rows[kind], columns=columns[kind])) for kind in rows}
    return frames | {"runs": frame, "searches": _searches(search, frame, keyed)}


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


def _add_time(rows: dict[str, list[dict[str, Any]]], key: dict[str, Any], run: Run) -> None:
    recorded = object_of(run.summary["time"])
    exposed = {"exposed_seconds": sum(recorded["exposed_seconds"].values())} if "exposed_seconds" in recorded else {}
    time = {column: _number((recorded | exposed).get(column)) for column in TIME_COLUMNS}
    counted = (has_deadline(run) or time["late_packets"] > 0) and time["packets"] > 0
    rows["time"].append({**key, **time, "late_rate": time["late_packets"] / time["packets"] if counted else NAN})


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Numbers as numbers, in a frame without rows too."""
    whole = {column: "int64" for column in ("step", "length", "count", "rank") if column in frame}
    real = {column: "float64" for column in frame if column in NUMBERS}
    return frame.astype(whole | real)


def _add_metrics(rows: dict[str, list[dict[str, Any]]], key: dict[str, Any], line: dict[str, Any]) -> None:
    divergence = object_of(line.get("divergence"))
    rows["metrics"].append(
        {**key, "step": line["step"], **{column: _number(line.get(column)) for column in METRIC_COLUMNS},
         "divergence_max": _number(divergence.get("max")), "divergence_rms": _number(divergence.get("rms"))}
    )  # fmt: skip
    groups = object_of(divergence.get("groups"))
    for group, value in [("all", divergence), *groups.items()] if divergence else ():
        value = object_of(value)
        rows["divergence"].append(
            {**key, "step": line["step"], "group": group, "max": _number(value.get("max")),
             "rms": _number(value.get("rms"))}
        )  # fmt: skip
    for traffic_class, value in object_of(line.get("classes")).items():
        value = object_of(value)
        rows["samples"].append(
            {**key, "step": line["step"], "class": traffic_class, "nmse": _number(value.get("nmse")),
             "cosine": _number(value.get("cosine"))}
        )  # fmt: skip


def _add_wall_seconds(rows: dict[str, list[dict[str, Any]]], key: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Sums over the lines after step 0."""
    sums: dict[tuple[int, str, str], float] = {}
    for line in lines:
        ranks = line.get("ranks") if line["step"] > 0 else None
        for rank, usage in enumerate(ranks if isinstance(ranks, list) else ()):
            wall = object_of(object_of(usage).get("wall_seconds"))
            for kind, member in (("phase", "phases"), ("communication", "communication"), ("waiting", "waiting")):
                for name, seconds in object_of(wall.get(member)).items():
                    place = (rank, kind, name)
                    sums[place] = sums.get(place, 0.0) + _number(seconds)
    rows["wall_seconds"] += [{**key, "rank": rank, "kind": kind, "name": name, "seconds": seconds}
                             for (rank, kind, name), seconds in sums.items()]  # fmt: skip


def _add_class(
    rows: dict[str, list[dict[str, Any]]], key: dict[str, Any], traffic_class: str, statistics: dict[str, Any]
) -> None:
    halves = object_of(statistics.get("halves"))
    for half, counts in [("both", statistics), *sorted(halves.items(), reverse=True)]:
        counts = object_of(counts)
        row = {**key, "class": traffic_class, "half": half}
        row |= _measured(counts, (*COUNT_COLUMNS, *(CLASS_COLUMNS if half == "both" else ())))
        # An infinite z (loss where none was configured) is null in JSON.
        if math.isnan(row["z"]) and row["configured_rate"] == 0 and row["lost"] > 0:
            row["z"] = math.inf
        row |= {column: counts.get(column) for column in ("path", "loss", "fill", "digest")}
        row["loss"] = row["loss"] if isinstance(row["loss"], str) or row["loss"] is None else _loss_words(row["loss"])
        rows["loss_statistics"].append(row)
        if recovery := object_of(counts.get("recovery")):
            found = {column: _number(recovery.get(column, counts.get(column))) for column in RECOVERY_COLUMNS}
            policy = {"policy": recovery.get("policy")}
            rows["recoveries"].append({**key, "class": traffic_class, "half": half, **policy, **found})
        for entry in counts.get("burst_histogram") or ():
            rows["bursts"].append(
                {**key, "class": traffic_class, "half": half, "length": int(entry["length"]),
                 "count": int(entry["count"]), "expected": _number(entry.get("expected"))}
            )  # fmt: skip


def _add_diagnostics(rows: dict[str, list[dict[str, Any]]], key: dict[str, Any], diagnostics: dict[str, Any]) -> None:
    for layer in diagnostics.get("layers") or ():
        number = layer.get("layer")
        rows["layers"].append({**key, "layer": -1 if number is None else number, **_measured(layer, LAYER_COLUMNS)})
    for half, counts in sorted(object_of(diagnostics.get("halves")).items()):
        for entry in object_of(counts).get("gap_histogram") or ():
            lengths = {"from": int(entry["from"]), "to": int(entry["to"]), "count": int(entry["count"])}
            rows["gaps"].append({**key, "half": half, **lengths, "expected": _number(entry.get("expected"))})


def _loss_words(value: Any) -> str:
    model = loss_model.from_spec(value)
    return LOSSLESS if model.lossless else f"{model.label}, {loss_model.percent(model.loss_rate)}"
