# SPDX-License-Identifier: Apache-2.0
"""Writes folders of records as docs/records.md says, with made-up training and a network that follows its theory."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from pathlib import Path

import numpy as np

from droptest.loss_model import GilbertElliott, probability
from droptest.pointers import short_names

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "analysis"
NONE = {"model": "none"}
CLASSES = ("tp_forward", "tp_backward")
SEEDS = ("weights", "data", "network")


def bernoulli(rate):
    return {"model": "bernoulli", "loss_rate": rate}


def gilbert_elliott(rate, burst):
    return {"model": "gilbert_elliott", "loss_rate": rate, "mean_burst_packets": burst}


BASE = {
    "name": "synthetic",
    "description": "What loss does to a made-up model.",
    "seed": 1,
    "model": {"preset": "nano"},
    "parallel": {"tensor": 4},
    "network": {"path": "direct", "fill": "zero"},
    "training": {"steps": 200, "learning_rate": 0.003},
    "validation": {"every_steps": 50, "tokens": 65536},
    "record": {"every_steps": 10, "sample_every_steps": 50},
}


def set_pointer(spec, pointer, value):
    *parents, last = pointer.strip("/").split("/")
    for part in parents:
        spec = spec.setdefault(part, {})
    spec[last] = copy.deepcopy(value)


def halves_of(network, name):
    """The loss and fill of each half of one class: class over half over network."""
    merged = {**network, **network.get("classes", {}).get(name, {})}
    halves = {}
    for half in ("reduce", "gather"):
        own = merged.get(half, {})
        halves[half] = {
            "loss": own.get("loss", merged.get("loss", NONE)),
            "fill": own.get("fill", merged.get("fill", "zero")),
        }
    return halves


def is_lossy(loss):
    return loss["model"] != "none" and chain_of(loss).loss_rate > 0


def resolve(spec):
    """The resolved spec: network as one object per lossy class, defaults written out where tests need them."""
    resolved = copy.deepcopy(spec)
    network = resolved.pop("network", {})
    resolved["network"] = {"classes": {}}
    for name in CLASSES if spec["parallel"]["tensor"] > 1 else ():
        halves = halves_of(network, name)
        compression = network.get("compression", {"kind": "none"})
        if "time" in spec or compression["kind"] != "none" or any(is_lossy(h["loss"]) for h in halves.values()):
            resolved["network"]["classes"][name] = {
                "path": network.get("path", "direct"),
                "payload_bytes": network.get("payload_bytes", 1408),
                "consistency": network.get("consistency", "per_receiver"),
                "burst_scope": "link",
                **({"recovery": network["recovery"]} if network.get("recovery") else {}),
                **({"compression": compression} if compression["kind"] != "none" else {}),
                **halves,
            }
    seed = resolved.pop("seed")
    resolved["seeds"] = {"weights": seed, "data": seed, "network": seed} | resolved.get("seeds", {})
    resolved.setdefault("backend", {"name": "local", "timeout_seconds": 60, "threads_per_rank": 1})
    training = resolved["training"]
    training.setdefault("final_learning_rate", training.get("learning_rate", 0.0006) / 10)
    resolved["model"].update(layers=4, width=128, heads=4, context=128, vocabulary=256)
    return resolved


def idle_parts(spec):
    """The settings that droptest warns of: loss where one rank sends nothing."""
    if spec["parallel"]["tensor"] > 1 or spec.get("network", {}).get("loss", NONE) == NONE:
        return []
    return [{"pointer": "/network", "message": "no packet is sent, so none is lost"}]


def one_seed(resolved):
    """The seed where all three agree, for records that have it then."""
    return {"seed": min(seeds)} if len(seeds := set(resolved["seeds"].values())) == 1 else {}


def run_id_of(resolved):
    core = {k: v for k, v in resolved.items() if k not in ("name", "description", "record")}
    return hashlib.sha256(json.dumps(core, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def chain_of(loss):
    if loss["model"] == "bernoulli":
        return GilbertElliott.bernoulli(probability(loss["loss_rate"]))
    if "loss_rate" in loss:
        return GilbertElliott.of_rate_and_burst(probability(loss["loss_rate"]), loss["mean_burst_packets"])
    return GilbertElliott(*(loss[k] for k in ("p_good_to_bad", "p_bad_to_good", "loss_good", "loss_bad")))


def half_record(rng, half, packets):
    """Counts of one half: the number lost is normal with the theory's variance, bursts are Poisson."""
    loss = half["loss"]
    record = {"messages": packets // 50, "packets": packets, "bytes": packets * 1408}
    if not is_lossy(loss):
        return record | {
            "lost": 0, "lost_bytes": 0, "configured_rate": 0.0, "realised_rate": 0.0, "z": 0.0,
            "mean_burst_packets": 0.0, "configured_mean_burst_packets": 0.0, "loss": "none", "fill": half["fill"],
            "burst_histogram": [],
        }  # fmt: skip
    chain = chain_of(loss)
    rate, memory = chain.loss_rate, 1 - chain.p - chain.r
    deviation = math.sqrt(packets * rate * (1 - rate) * (1 + memory) / (1 - memory))
    z = float(rng.normal())
    lost = max(0, round(packets * rate + z * deviation))
    expected = packets * chain.bursts_per_packet(np.arange(1, 400))
    counts = rng.poisson(expected)
    histogram = [
        {"length": i + 1, "count": int(counts[i]), "expected": round(float(expected[i]), 3)}
        for i in range(len(counts))
        if counts[i] or expected[i] > 0.5
    ]
    return record | {
        "lost": lost, "lost_bytes": lost * 1408, "configured_rate": rate, "realised_rate": lost / packets,
        "z": (lost - packets * rate) / deviation, "mean_burst_packets": lost / max(1, int(counts.sum())),
        "configured_mean_burst_packets": chain.mean_burst_packets, "loss": json.dumps(loss), "fill": half["fill"],
        "burst_histogram": histogram,
    }  # fmt: skip


def loss_statistics(rng, resolved, packets=200_000):
    classes = {}
    for name, network in resolved["network"]["classes"].items():
        halves = {half: half_record(rng, network[half], packets) for half in ("reduce", "gather")}
        total = {key: halves["reduce"][key] + halves["gather"][key]
                 for key in ("messages", "packets", "bytes", "lost", "lost_bytes")}  # fmt: skip
        configured = (halves["reduce"]["configured_rate"] + halves["gather"]["configured_rate"]) / 2
        classes[name] = total | {
            "configured_rate": configured, "realised_rate": total["lost"] / total["packets"],
            "z": (halves["reduce"]["z"] + halves["gather"]["z"]) / math.sqrt(2),
            "mean_burst_packets": halves["reduce"]["mean_burst_packets"],
            "configured_mean_burst_packets": halves["reduce"]["configured_mean_burst_packets"],
            "collectives": 1600, "untouched_share": 0.25, "nmse": 1.5 * configured, "cosine": 1 - configured,
            "divergence_max": configured, "divergence_rms": configured / 10, "digest": "0123456789abcdef",
            "path": network["path"], "halves": halves,
        }  # fmt: skip
    return {"schema_version": 1, "classes": classes, "links": []}


def diagnostics(rng, resolved):
    """Errors that grow with the layer, of results whose energy differs by seed, and gaps as theory expects them."""
    classes = {}
    for name, network in resolved["network"]["classes"].items():
        rates = [chain_of(network[half]["loss"]).loss_rate for half in ("reduce", "gather")
                 if is_lossy(network[half]["loss"])]  # fmt: skip
        rate = max(rates, default=0.0)
        exact = 100.0 * (1 + resolved["seeds"]["weights"] % 7)
        layers = [
            {"layer": layer, "steps": 200, "untouched_steps": 50, "untouched_share": 0.25, "sampled_calls": 8,
             "bias": -0.1 * rate * float(rng.normal()),
             "nmse": (nmse := rate * (1 + (layer or 0)) * rng.uniform(0.9, 1.1)),
             "error_energy": nmse * exact, "exact_energy": exact,
             "cosine": 1 - rate, "divergence_max": rate, "divergence_rms": rate / 10}
            for layer in (None, *range(4))
        ]  # fmt: skip
        gaps = [{"from": 1, "to": 1, "count": 9, "expected": 10.5}, {"from": 2, "to": 3, "count": 4, "expected": None}]
        classes[name] = {"layers": layers, "halves": {half: {"gap_histogram": gaps} for half in ("reduce", "gather")}}
    return {"schema_version": 1, "classes": classes}


def damage(resolved):
    """How much the made-up model suffers, in nats."""
    harm = 0.0
    for name, network in resolved["network"]["classes"].items():
        for half in ("reduce", "gather"):
            loss = network[half]["loss"]
            if is_lossy(loss):
                chain = chain_of(loss)
                weight = 0.6 if name == "tp_forward" else 0.4
                harm += weight * (0.9 * chain.loss_rate**1.3) * (1 + 0.03 * min(chain.mean_burst_packets, 20))
    return harm


def seconds_per_step(resolved):
    """A step takes 1 s. A reliable network adds the time of lost packets, 5 s at a loss rate of 1."""
    reliable = resolved["time"]["retransmission"]["protocol"] != "none"
    rates = [chain_of(n["reduce"]["loss"]).loss_rate for n in resolved["network"]["classes"].values()
             if is_lossy(n["reduce"]["loss"])]  # fmt: skip
    return 1 + 5 * max(rates, default=0) * reliable


def timed_metrics(resolved):
    """Exact numbers: the loss falls from 3 to 1.2 by 0.01 in a step, on a tolerant network times 1 - 40 rate^2.

    So the time to a target is (3 - target) / 0.01 steps over that factor, and the break-even rate solves
    (1 + 5 rate) (1 - 40 rate^2) = 1.
    """
    pace = 0.01
    if resolved["time"]["retransmission"]["protocol"] == "none":
        for network in resolved["network"]["classes"].values():
            if is_lossy(network["reduce"]["loss"]):
                pace = 0.01 * (1 - 40 * chain_of(network["reduce"]["loss"]).loss_rate ** 2)
                pace *= 1 + 0.01 * (resolved["seeds"]["network"] % 3 - 1)
                break
    every = resolved["validation"]["every_steps"]
    steps = range(0, resolved["training"]["steps"] + 1, every)
    return [
        {
            **{"step": step, "tokens": step, "seconds": step / 10, "validation_loss": max(1.2, 3 - pace * step)},
            "virtual_seconds": step * seconds_per_step(resolved),
        }
        for step in steps
    ]


def metrics(rng, resolved, until=None):
    if "time" in resolved:
        return timed_metrics(resolved)
    lines = []
    steps, record = resolved["training"]["steps"], resolved["record"]
    harm, offset = damage(resolved), 0.01 * ((resolved["seeds"]["weights"] * 7) % 5 - 2)
    for step in range(0, steps + 1, record["every_steps"]):
        if until is not None and step > until:
            break
        base = 2.3 + 3.2 * math.exp(-step / 60) + offset + harm * (1 - math.exp(-step / 40))
        line = {"step": step, "tokens": step * 1024, "seconds": step * 0.1}
        if step:
            line |= {"train_loss": base - 0.05 + 0.03 * float(rng.normal()), "learning_rate": 0.003,
                     "gradient_norm": 1.0 + base / 3}  # fmt: skip
        if step % resolved["validation"]["every_steps"] == 0 or step == steps:
            line["validation_loss"] = base + 0.001 * float(rng.normal()) * (1 + 20 * harm)
        if step and step % record["sample_every_steps"] == 0:
            size = harm * 0.01 * math.sqrt(step) * math.exp(0.2 * float(rng.normal()))
            groups = {"embedding": 1.3, "layer_norm": 0.5, "bias": 1.0}
            line["divergence"] = {
                "max": 6 * size, "rms": size,
                "groups": {g: {"max": 6 * f * size, "rms": f * size} for g, f in groups.items()},
            }  # fmt: skip
            line["classes"] = {c: {"nmse": 1.5 * harm, "cosine": 1 - harm} for c in resolved["network"]["classes"]}
        lines.append(line)
    return lines


def time_of(resolved, lines):
    """The clock of a run. With a deadline of D microseconds the share 16.2 / D of the packets is late: 27 % at 60."""
    if "time" not in resolved:
        return {}
    late = round(1000 * min(1.0, 16.2 / resolved["time"].get("deadline_microseconds", math.inf)))
    return {"time": {"virtual_seconds": lines[-1].get("virtual_seconds", 0.0) if lines else 0.0, "compute_seconds": 1.0,
                     "packets": 1000, "repeated_packets": 0, "timeouts": 0, "late_packets": late}}  # fmt: skip


def summary_of(resolved, point, lines, status="completed", error=None, diverged_step=None):
    validation = [line["validation_loss"] for line in lines if line.get("validation_loss") is not None]
    loss = {}
    for name, network in resolved["network"]["classes"].items():
        loss[name] = {}
        for half in ("reduce", "gather"):
            process = network[half]["loss"]
            lossy = is_lossy(process)
            loss[name][half] = {
                "model": process["model"],
                "loss_rate": chain_of(process).loss_rate if lossy else 0.0,
                "mean_burst_packets": chain_of(process).mean_burst_packets if lossy else 0.0,
            }
    return {
        "schema_version": 1, "run_id": run_id_of(resolved), "name": resolved["name"], "status": status,
        "error": error, "diverged_step": diverged_step, "seeds": resolved["seeds"], **one_seed(resolved),
        "point": point,
        "steps": lines[-1]["step"] if lines else 0, "tokens": 204800,
        "train": {"final_loss": 2.31 if status == "completed" else None},
        "validation": {"final_loss": validation[-1] if status == "completed" else None,
                       "best_loss": min(validation) if validation else None, "tokens": 65536},
        "tokens_per_second": 12345.6, "seconds": 21.5, "loss": loss, **time_of(resolved, lines),
        "provenance": {"version": "0.1.0", "commit": "abc1234", "host": "testhost", "compiler": "g++ 12.2.0",
                       "libraries": {"oneDNN": "2.7.2"}, "started": "2024-01-01T00:00:00Z",
                       "finished": "2024-01-01T00:00:21Z"},
    }  # fmt: skip


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def write_run(folder, spec, point=None, outcome="completed", final_loss=None):
    """One run's folder below `folder`; returns its id.

    outcome: completed, diverged (at half time), failed, unfinished (no summary, last line torn off), missing.
    final_loss replaces the made-up final validation loss.
    """
    resolved = resolve(spec)
    run_id = run_id_of(resolved)
    if outcome == "missing":
        return run_id
    path = Path(folder) / run_id
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(int(run_id, 16))
    write_json(path / "spec.json", resolved)
    half = resolved["training"]["steps"] // 2
    lines = metrics(rng, resolved, None if outcome == "completed" else half)
    if outcome == "failed":
        lines = lines[:2]
    if outcome == "diverged":
        lines[-1] |= {"train_loss": None, "validation_loss": None}
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if outcome == "unfinished":
        text += json.dumps(lines[-1])[:37]
    (path / "metrics.jsonl").write_text(text, encoding="utf-8")
    if outcome in ("completed", "diverged"):
        write_json(path / "loss_statistics.json", loss_statistics(rng, resolved))
        write_json(path / "diagnostics.json", diagnostics(np.random.default_rng(7), resolved))
    if outcome != "unfinished":
        error = "all_reduce: rank 1 of 4: rank 2 <is gone>" if outcome == "failed" else None
        summary = summary_of(resolved, point or {}, lines, outcome, error, half if outcome == "diverged" else None)
        summary["warnings"] = idle_parts(spec)
        if final_loss is not None:
            summary["validation"]["final_loss"] = final_loss
        write_json(path / "summary.json", summary)
    return run_id


def add_wall_seconds(path, of_line):
    """Puts `ranks` into every line of a run's metrics: of_line(step) -> wall_seconds by rank."""
    lines = [json.loads(text) for text in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["ranks"] = [{"resident_bytes": 1, "cpu_seconds": 1.0, "cpu_percent": 100.0, "wall_seconds": wall}
                         for wall in of_line(line["step"])]  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def seeds_of(first, count, repeat):
    """The seeds of a sweep: numbers, or all combinations of the three."""
    if repeat is None:
        return list(range(first, first + count))
    ranges = [range(first, first + repeat.get(key, 1)) for key in SEEDS]
    return [dict(zip(SEEDS, values, strict=True)) for values in itertools.product(*ranges)]


def write_sweep(out, cross, seeds=3, base=BASE, outcomes=None, final_losses=None, repeat=None, labels=None,
                best_over=None, selection_losses=None, **changes):  # fmt: skip
    """results/<name> of a crossed sweep; returns its folder.

    outcomes: function of (point, seed) -> an outcome of write_run. final_losses: likewise -> final loss or None.
    repeat: {"weights": 2, "network": 3} crosses seeds instead; the functions get a dict of the three then.
    labels: function of a point -> its labels. best_over: pointers; selection_losses: function of (point, seed).
    """
    spec = copy.deepcopy(base) | changes
    folder = Path(out) / spec["name"]
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for values in itertools.product(*cross.values()):
        point = dict(zip(cross, values, strict=True))
        for seed in seeds_of(spec["seed"], seeds, repeat):
            one = copy.deepcopy(spec) | ({"seeds": seed} if repeat else {"seed": seed})
            for pointer, value in point.items():
                set_pointer(one, pointer, value)
            outcome = outcomes(point, seed) if outcomes else "completed"
            final = final_losses(point, seed) if final_losses else None
            keys = seed if repeat else dict.fromkeys(SEEDS, seed)
            runs.append({"run_id": write_run(folder, one, point, outcome, final), "point": point, "seeds": keys,
                         **one_seed({"seeds": keys})})  # fmt: skip
            if labels:
                runs[-1]["labels"] = labels(point)
            if selection_losses and outcome == "completed":
                path = folder / runs[-1]["run_id"] / "summary.json"
                summary = json.loads(path.read_text())
                summary["validation"] |= {"selection_loss": selection_losses(point, seed), "selection_tokens": 65536}
                write_json(path, summary)
            if idle_parts(one):
                runs[-1]["warnings"] = idle_parts(one)
    best = {"best_over": best_over} if best_over else {}
    given = spec | {"sweep": {"cross": cross} | best, "repeat": repeat or {"seeds": seeds}}
    record = {
        "schema_version": 1,
        "name": spec["name"],
        "description": spec["description"],
        "spec": given,
        "runs": runs,
    }
    # Points are in alphabetical order, as the program writes them; `names` has the order of the spec.
    for run in runs:
        run["point"] = dict(sorted(run["point"].items()))
    names = [{"pointer": pointer, "name": name} for pointer, name in short_names(list(cross)).items()]
    write_json(folder / "sweep.json", record | best | ({"names": names} if names else {}))
    return folder


def write_search(folder, judged, twins, threshold=0.12, interval=(0.05, 0.4), tolerance=1.0, **changes):
    """A search.json in an experiment's folder.

    judged: rate -> (verdict, mean, low, high, [(run_id, seed, difference)]); twins: [(run_id, seed)].
    """
    run = lambda run_id, seed: {"run_id": run_id, "seed": seed, "status": "completed", "loss": 2.5}  # noqa: E731
    rates = [
        {"rate": rate, "verdict": verdict, "pairs": len(runs), "mean_percent": mean, "low_percent": low,
         "high_percent": high,
         "runs": [{**run(run_id, seed), "difference_percent": difference} for run_id, seed, difference in runs]}
        for rate, (verdict, mean, low, high, runs) in judged.items()
    ]  # fmt: skip
    record = {
        "schema_version": 1, "name": Path(folder).name, "description": "", "spec": {}, "status": "found", "remark": "",
        "settings": {"pointer": "/network/loss/loss_rate", "tolerance_percent": tolerance},
        "threshold": threshold, "interval": dict(zip(("low", "high"), interval, strict=True)), "monotone": True,
        "runs": 12, "twins": [run(*twin) for twin in twins], "rates": rates,
    }  # fmt: skip
    write_json(Path(folder) / "search.json", record | changes)


QUICKSTART_LOSSES = [
    NONE,
    *(bernoulli(rate) for rate in (0.01, "5%", 0.2, 0.4)),
    *(gilbert_elliott(rate, 8) for rate in (0.01, 0.05, 0.2, 0.4)),
]


def write_quickstart(out, **changes):
    return write_sweep(out, {"/network/loss": QUICKSTART_LOSSES}, **changes)
