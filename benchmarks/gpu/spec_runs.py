# SPDX-License-Identifier: Apache-2.0
"""The specs that gpu_bench runs with the droptest command, and the rates of their steps."""

import array
import itertools
import json
import random
import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path

from program_runs import ProgramError, machine_meanwhile, output_of

STEPS = 12
WARM_UP = 3  # steps that count in no rate
TRACED_STEPS, TRACED = 16, (10, 15)  # of runs that write a trace
END_OF_TEXT = 50256
TOKENS = 1 << 20
DOCUMENT_TOKENS = (64, 1024)  # lengths of documents are uniform between these


def lossy(*classes: str, **settings: str) -> dict:
    """1 % of the packets of the traffic classes are lost."""
    return {"classes": {name: {"loss": {"model": "bernoulli", "loss_rate": "1%"}, **settings} for name in classes}}


def four_ranks(message: str, **more: object) -> dict:
    precision = {"compute": "bfloat16", "message": message}
    return {"parallel": {"tensor": 4, **more}, "training": {"precision": precision}}


def sequence_ranks(kind: str) -> dict:
    return {"parallel": {"sequence": 4, "sequence_kind": kind}, "training": {"batch_sequences": 16}}


TENSOR_LOSS = {"network": {"path": "direct"} | lossy("tp_forward", "tp_backward", fill="count_rescale")}
SEQUENCE_LOSS = {"network": {"path": "direct", "classes": lossy("sequence_forward", fill="absent")["classes"]
                             | lossy("sequence_backward")["classes"]}}  # fmt: skip
SIXTEEN = {"training": {"batch_sequences": 16}}
# A spec of each part's cases: what it changes in base().
CASES = {
    "tensor": {
        "one rank": {},
        "float32 messages": four_ranks("float32"),
        "float32 messages, 1 % lost": four_ranks("float32") | TENSOR_LOSS,
        "bfloat16 messages": four_ranks("bfloat16"),
        "bfloat16 messages, 1 % lost": four_ranks("bfloat16") | TENSOR_LOSS,
        "tensor_sequence": four_ranks("bfloat16", tensor_sequence=True),
        "tensor_sequence, 1 % lost": four_ranks("bfloat16", tensor_sequence=True) | TENSOR_LOSS,
    },
    "documents": {
        "across documents": SIXTEEN,
        "across documents, flash": SIXTEEN | {"kernels": {"attention": "flash"}},
        "within documents": SIXTEEN | {"data": {"documents": True, "end_of_text": END_OF_TEXT}},
    },
    "sequence": {
        "one rank": SIXTEEN,
        "ring": sequence_ranks("ring"),
        "ring, 1 % lost": sequence_ranks("ring") | SEQUENCE_LOSS,
        "ulysses": sequence_ranks("ulysses"),
        "ulysses, 1 % lost": sequence_ranks("ulysses") | SEQUENCE_LOSS,
    },
    "shares": {
        "one rank": {"training": {"steps": TRACED_STEPS}, "record": {"profile_steps": list(TRACED)}},
        "four ranks": {
            "parallel": {"tensor": 4},
            "training": {"steps": TRACED_STEPS, "precision": {"compute": "bfloat16", "message": "bfloat16"}},
            "record": {"profile_steps": list(TRACED)},
        },
    },
}


def base(tokens: Path, model: dict) -> dict:
    """Training of the model in bfloat16 with 64 sequences a step."""
    return {
        "name": "gpu_bench",
        "model": model,
        "data": {"tokens": str(tokens), "format": "uint16"},
        "device": "cuda",
        "training": {"steps": STEPS, "batch_sequences": 64, "precision": {"compute": "bfloat16"}},
        # Evaluations are at the first and the last step, which count in no rate.
        "validation": {"every_steps": 1000, "tokens": 1024},
        "record": {"every_steps": 1, "sample_every_steps": 0, "weights": "none"},
    }


def write_tokens(path: Path, vocabulary: int = END_OF_TEXT, count: int = TOKENS) -> None:
    """Random tokens below the vocabulary, in documents that end with END_OF_TEXT."""
    draw = random.Random(1)
    tokens = array.array("H", draw.choices(range(vocabulary), k=count))
    end = 0
    while (end := end + draw.randint(*DOCUMENT_TOKENS)) < count:
        tokens[end] = END_OF_TEXT
    path.write_bytes(tokens.tobytes())


@dataclass
class SpecRuns:
    """Runs cases with the command. `folder` is of this object alone; it has the tokens and the specs."""

    binary: Path
    folder: Path
    model: dict

    def write(self, part: str, case: str) -> Path:
        """The spec of a case. The first call writes the tokens and the base of all specs."""
        tokens, spec = self.folder / "tokens.bin", self.folder / "spec.json"
        if not tokens.exists():
            write_tokens(tokens)
            (self.folder / "base.json").write_text(json.dumps(base(tokens, self.model)))
        spec.write_text(json.dumps({"extends": "base.json"} | CASES[part][case]))
        return spec

    def run(self, part: str, case: str, timeout: float) -> dict:
        """One run: rate, kernel of attention, marks, and `trace` where the case asks for one. Raises: ProgramError."""
        spec, out = self.write(part, case), self.folder / "results"
        words = [str(self.binary), "run", str(spec), "--out", str(out), "--quiet"]
        try:
            with machine_meanwhile() as meanwhile:
                output_of(words, timeout=timeout)
            (summary_file,) = out.rglob("summary.json")
            summary = json.loads(summary_file.read_text())
            lines = [json.loads(line) for line in summary_file.with_name("metrics.jsonl").read_text().splitlines()]
            trace = summary_file.with_name("trace.json")
            traced = {"trace": json.loads(trace.read_text())} if trace.exists() else {}
        except (OSError, ValueError) as error:
            raise ProgramError(f"{part}: {case}: the run left no readable records: {error}") from error
        finally:
            shutil.rmtree(out, ignore_errors=True)
        if summary["status"] != "completed":
            raise ProgramError(f"{part}: {case}: {summary['status']}: {summary['error'] or 'the loss is not finite'}")
        return rates(lines, bool(traced)) | traced | {
            "attention": (summary.get("kernels") or {}).get("attention"),
            "marks": [warning["message"] for warning in summary["warnings"] if "mark" in warning],
            "device_bytes": (summary["memory"].get("device") or {}).get("bytes"),
            "final_loss": summary["train"]["final_loss"],
            "machine_meanwhile": meanwhile,
        }  # fmt: skip


def rates(lines: list[dict], is_traced: bool) -> dict:
    """The median seconds of a step and their tokens per second, from lines of metrics.jsonl, one of each step.

    Steps of the warm-up, the last one, which evaluates, and traced ones do not count. Traced steps have a median of
    their own, without the first of them, which waits for the device. Raises: ProgramError where no step is left.
    """
    seconds = {
        line["step"]: line["seconds"] - before["seconds"]
        for before, line in itertools.pairwise(lines)
        if line["step"] == before["step"] + 1
    }
    last = lines[-1]["step"]
    plain = [s for step, s in seconds.items() if WARM_UP < step < (TRACED[0] if is_traced else last)]
    if not plain:
        raise ProgramError(f"metrics.jsonl has steps up to {last}, want more than {WARM_UP + 1}")
    step_seconds = statistics.median(plain)
    tokens = (lines[-1]["tokens"] - lines[-2]["tokens"]) / (lines[-1]["step"] - lines[-2]["step"])
    found = {"step_seconds": step_seconds, "steps": len(plain), "tokens_per_second": tokens / step_seconds}
    if is_traced:
        traced = [s for step, s in seconds.items() if TRACED[0] < step <= TRACED[1]]
        found["traced_step_seconds"] = statistics.median(traced)
    return found
