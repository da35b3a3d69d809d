# SPDX-License-Identifier: Apache-2.0
"""Peak memory and speed of GPT-2 under each memory strategy, and the largest model that fits under each.

Runs of one rank, in turns: each round has one run of each strategy, in a process of its own. With --largest the script
asks `droptest plan` for the most blocks of GPT-2 xl's width that fit, and trains that model for one step.
Prints one JSON object.

    python3 benchmarks/memory_strategies.py --binary build/release/experiments/droptest [--rounds 3] [--largest 20GiB]
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import machine
from memory_estimate import plan_of, program
from program_runs import machine_meanwhile, say

OFFLOAD = {"offload_optimizer": True, "offload_parameters": True}
MEMORY = {
    "basic": "basic",
    "standard": "standard",
    "aggressive": "aggressive",
    "extreme": "extreme",
    "extreme, optimizer offloaded": {"strategy": "extreme", "offload_optimizer": True},
    "extreme, all offloaded": {"strategy": "extreme"} | OFFLOAD,
}
XL = {"width": 1600, "heads": 25, "vocabulary": 50257}
UNITS = {"MiB": 2**20, "GiB": 2**30}


def spec_of(model, memory, steps, tokens, directory):
    """One rank, one sequence a step, one short evaluation at the end."""
    place = {"directory": str(directory)} if directory and isinstance(memory, dict) else {}
    return {
        "name": "memory",
        "model": model,
        "data": {"text": "corpus/kjv.txt"},
        "parallel": {"tensor": 1},
        "training": {"steps": steps, "warmup_steps": 0, "sequence_tokens": tokens, "batch_sequences": 1},
        "validation": {"every_steps": steps, "tokens": tokens},
        "record": {"weights": "none", "every_steps": steps},
        "memory": memory | place if isinstance(memory, dict) else memory,
    }


def trained(binary, spec):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        (planned,) = plan_of(binary, path)
        done = program(binary, "run", path, "--out", Path(folder) / "results")
        summary = next((Path(folder) / "results").glob("*/*/summary.json"), None)
        if done.returncode != 0 or summary is None:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no summary"])[-1])
        record = json.loads(summary.read_text(encoding="utf-8"))
    return {
        "tokens_per_second": record["tokens_per_second"],
        "loss": record["validation"]["final_loss"],
        "process_bytes": record["memory"]["process"]["bytes"],
        "activation_bytes": record["memory"]["model"]["activations"]["bytes"],
        "planned_process_bytes": planned["memory"]["process"],
    }


def planned_bytes(binary, spec):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        return plan_of(binary, path)[0]["memory"]["process"]


def most_layers(binary, make, limit):
    """The largest number of blocks whose process stays within the limit."""
    below, above = 0, 1
    while planned_bytes(binary, make(above)) <= limit:
        below, above = above, 2 * above
    while above - below > 1:
        middle = (below + above) // 2
        if planned_bytes(binary, make(middle)) <= limit:
            below = middle
        else:
            above = middle
    return below


def parameters(layers, width=XL["width"], vocabulary=XL["vocabulary"], context=1024):
    return layers * (12 * width * width + 13 * width) + (vocabulary + context + 2) * width


def bytes_of(text):
    for unit, size in UNITS.items():
        if text.endswith(unit):
            return float(text[: -len(unit)]) * size
    raise argparse.ArgumentTypeError(f"got {text}, want a number with MiB or GiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, type=lambda p: str(Path(p).resolve()))
    parser.add_argument("--preset", default="small")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=1024, help="of a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--largest", type=bytes_of, help="of a process, e.g. 20GiB: also train the largest model")
    parser.add_argument("--only", nargs="*", choices=MEMORY, default=list(MEMORY))
    parser.add_argument("--directory", help="of offload files")
    options = parser.parse_args()
    found = {name: [] for name in options.only}
    largest = {}
    with machine_meanwhile() as load:
        for number in range(options.rounds):
            for name in options.only:
                say(f"round {number + 1}: {name}")
                model = {"preset": options.preset}
                spec = spec_of(model, MEMORY[name], options.steps, options.tokens, options.directory)
                found[name].append(trained(options.binary, spec))
        for name in options.only if options.largest else ():

            def make(layers, memory=MEMORY[name]):
                return spec_of(XL | {"layers": layers, "context": 1024}, memory, 1, 256, options.directory)

            layers = most_layers(options.binary, make, options.largest)
            if layers == 0:
                largest[name] = None
                continue
            say(f"largest: {name}: {layers} blocks, {parameters(layers) / 1e9:.2f} billion parameters")
            largest[name] = {"layers": layers, "parameters": parameters(layers)} | trained(options.binary, make(layers))
    rows = {}
    for name, runs in found.items():
        if runs:
            rows[name] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            first = found[options.only[0]]
            rows[name]["speed_over_first"] = statistics.median(
                run["tokens_per_second"] / other["tokens_per_second"] for run, other in zip(runs, first, strict=True)
            )
    json.dump(
        {
            "machine": machine.describe(),
            "commit": machine.commit(),
            "meanwhile": load,
            "preset": options.preset,
            "steps": options.steps,
            "tokens": options.tokens,
            "rounds": options.rounds,
            "strategies": rows,
            "largest": largest,
        },
        sys.stdout,
        indent=1,
    )
    print()


if __name__ == "__main__":
    main()
