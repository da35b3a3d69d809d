# SPDX-License-Identifier: Apache-2.0
"""The losses of a user's program as the records of a run: metrics.jsonl, spec.json, summary.json (docs/records.md)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import operator
import os
import platform
import re
import socket
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from threading import Lock
from typing import IO, Any

from droptest import loss_model
from droptest.json_values import UnusableValue, json_text, object_of
from droptest.library import CLASSES, HALVES

# Further members of a line that the schema of metrics.jsonl has, with the least value of each; other names are free.
KNOWN_NUMBERS = {"learning_rate": None, "gradient_norm": None, "selection_loss": None, "loss_scale": 0}
KNOWN_INTEGERS = {"skipped_steps": 0, "lost_samples": 1, "failed_checkpoints": 1, "replicas": 1}
# Names of other members of a line, and of the columns that all frames have.
TAKEN = {
    "train_loss": "training_loss=...", "seconds": "none: the network measures them",
    **dict.fromkeys(("virtual_seconds", "classification", "divergence", "classes", "losses", "ranks", "divergence_max",
                     "divergence_rms", "run_id", "series", "label", "loss_rate", "seed"),
                    "another name: records have this one with another meaning"),
}  # fmt: skip
MEMBERS_OF_SPEC = {"name", "seeds", "network", "settings", "unit"}  # of a program
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
SEEDS = ("weights", "data")
LIBRARIES = ("numpy", "torch", "transformers", "accelerate", "lightning")
LOOKS = 50  # at a lock that another process may hold for a moment
LAST_LINES = 10  # whose mean is the final training loss
TWIN_OMITS = ("/name", "/network", "/seeds/network")  # in which a run and its lossless twin may differ


_written: set[Path] = set()  # folders of runs, by networks of this process


class UnusableArgument(ValueError):
    """Of log() or finish(); the message begins with the name of the argument."""


def outcome_of(lines: Iterable[Mapping[str, Any]], validation_tokens: int = 0) -> dict[str, Any]:
    """The members of summary.json that follow from the lines of metrics.jsonl, in the order of the file:

    status: "diverged" if a line has a train_loss or a validation_loss that is not finite (null), else "completed";
    diverged_step: the step of the first such line, or None;
    steps: the step of the last line, or 0; tokens: the last one that a line has, or 0;
    seconds: of the last line, or None; tokens_per_second: tokens / seconds, or None if one of them is 0 or None;
    train.final_loss: the mean over the last ten lines that have a train_loss, added up in their order; None without
        any, and if one of them is null;
    validation.final_loss: the last validation_loss, None without any; validation.best_loss: the smallest of those that
        are finite, None without any; validation.tokens: as the program says it.

    `droptest sweep` has the same rule for programs that it starts.
    """
    lines = list(lines)
    trained = [line["train_loss"] for line in lines if "train_loss" in line][-LAST_LINES:]
    validated = [line["validation_loss"] for line in lines if "validation_loss" in line]
    diverged = [line["step"] for line in lines
                if any(name in line and line[name] is None for name in ("train_loss", "validation_loss"))]  # fmt: skip
    final = None
    if trained and None not in trained:
        final = 0.0
        for loss in trained:  # sum() of Python 3.12 rounds otherwise than a loop of C++
            final += loss
        final /= len(trained)
    tokens = next((line["tokens"] for line in reversed(lines) if "tokens" in line), 0)
    seconds = lines[-1].get("seconds") if lines else None
    return {
        "status": "diverged" if diverged else "completed",
        "diverged_step": diverged[0] if diverged else None,
        "steps": lines[-1]["step"] if lines else 0,
        "tokens": tokens,
        "train": {"final_loss": final},
        "validation": {
            "final_loss": validated[-1] if validated else None,
            "best_loss": min((loss for loss in validated if loss is not None), default=None),
            "tokens": validation_tokens,
        },
        "tokens_per_second": tokens / seconds if tokens and seconds else None,
        "seconds": seconds,
    }


@dataclass
class ProgramRun:
    """The lines and the summary of a program. Rank 0 writes them; the other ranks check their arguments.

    source: the text of the network. The network itself is an argument of calls, so that it ends with its last
    reference in the program.
    """

    source: str
    rank: int
    _made: float = field(default_factory=time.monotonic)
    _started: str = field(default_factory=lambda: _utc())
    _lock: Lock = field(default_factory=Lock)
    _last_step: int | None = None
    _tokens: int | None = None  # of the last line that has them
    _first_step: int | None = None  # of this process
    _seconds_before: float = 0.0  # of the processes before
    _is_finished: bool = False
    _held: IO[str] | None = None  # the lock of the folder, which shows that the program runs
    folder: Path | None = field(init=False)  # where the records are

    def __post_init__(self) -> None:
        statistics = object_of(json.loads(self.source)).get("statistics")
        self.folder = Path(statistics).absolute() if isinstance(statistics, str) else None

    def log(self, network: Any, step: Any, losses: Mapping[str, Any], tokens: Any, columns: Mapping[str, Any]) -> None:
        """Appends a line. losses: train_loss and validation_loss by the names of the arguments. Raises:
        UnusableArgument, OSError."""
        with self._lock:
            self._check_open()
            number = integer("step", step, 0)
            if self._last_step is not None and number <= self._last_step:
                raise UnusableArgument(f"step: got {number}, want more than {self._last_step}, the last one logged")
            members = members_of_line(losses, tokens, columns)
            self._append(network, number, members)

    def finish(
        self, network: Any, step: Any, losses: Mapping[str, Any], tokens: Any, columns: Mapping[str, Any], *,
        validation_tokens: Any, settings: Mapping[str, Any] | None, seed: Any, seeds: Mapping[str, Any] | None,
        unit: str | None,
    ) -> None:  # fmt: skip
        """Appends a line with what is given, and writes spec.json and summary.json, unless a sweep has started the
        program, which does that. Raises: UnusableArgument, OSError."""
        with self._lock:
            folder = self._check_open()
            last = self._last_step
            number = integer("step", last or 0 if step is None else step, 0)
            if last is not None and number < last:
                raise UnusableArgument(f"step: got {number}, want {last}, the last one logged, or more")
            members = members_of_line(losses, tokens, columns)
            validation_tokens = integer("validation_tokens", validation_tokens, 0)
            plain_settings = settings_of(settings)
            own_seeds = own_seeds_of(seed, seeds)
            if unit is not None and not (isinstance(unit, str) and unit):
                raise UnusableArgument(f'unit: got {unit!r}, want a text such as "nats per byte"')
            if members:
                self._append(network, number, ({} if self._tokens is None else {"tokens": self._tokens}) | members)
            self._is_finished = True
            if self.rank != 0 or _is_swept(folder):
                return
            self._begin(network, number)
            counts = network.statistics().record
            record = object_of(counts.get("network"))
            all_seeds = seeds_of_run(own_seeds, record["seed"])
            spec = {"name": _name(folder), "seeds": all_seeds, "network": {"classes": record["classes"]}}
            spec |= {"settings": plain_settings} if plain_settings else {}
            spec |= {"unit": unit} if unit is not None else {}
            lines = _lines_of(folder / "metrics.jsonl")
            _write(folder / "spec.json", spec)
            summary = self._summary(network, spec, object_of(counts.get("classes")))
            summary |= outcome_of(lines, validation_tokens)
            if error := _idle(network, counts):
                if network.world_size == 1:
                    summary |= {"status": "failed", "error": error, "diverged_step": None}
                else:  # other ranks may have sent some
                    summary["warnings"].append({"pointer": "/network", "message": f"on rank 0: {error}"})
                warnings.warn(f"rank {self.rank} of {network.world_size}: {error}", stacklevel=3)
            _write(folder / "summary.json", summary)
            self.release()

    def release(self) -> None:
        """The program writes no more."""
        if self._held is not None:
            Path(self._held.name).unlink(missing_ok=True)  # before the lock ends, so that a later holder's file stays
            self._held.close()
            self._held = None

    def _check_open(self) -> Path:
        if self.folder is None:
            raise UnusableArgument('statistics: the network names no folder; want "statistics": "results/mine/lossy_1" '
                                   'beside "network", the folder of this run')  # fmt: skip
        if self._is_finished:
            raise UnusableArgument("got a call after finish(), which has written the records of this run")
        return self.folder

    def _append(self, network: Any, step: int, members: dict[str, Any]) -> None:
        self._tokens = members.get("tokens", self._tokens)
        if self.rank == 0:
            self._begin(network, step)
            seconds = self._seconds_before + time.monotonic() - self._made
            tokens = {"tokens": members.pop("tokens")} if "tokens" in members else {}
            line = {"step": step, **tokens, "seconds": seconds, **members}
            with (self.folder / "metrics.jsonl").open("ab", buffering=0) as file:
                file.write(json.dumps(line).encode() + b"\n")
        self._last_step = step

    def _begin(self, network: Any, step: int) -> None:
        """Before the first line: removes the records of an earlier program in the folder. If this program goes on after
        a checkpoint, the lines before this step stay."""
        if self._first_step is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if _is_swept(self.folder) and self.folder in _written:
            raise UnusableArgument("got the first line of a second network of this program, want one network for a "
                                   "run: its lines and counts would take the place of the first one's")  # fmt: skip
        if not _is_swept(self.folder):
            _check_is_of_program(self.folder)
            self._held = _taken(self.folder / "lock")
            for name in ("summary.json", "spec.json"):
                (self.folder / name).unlink(missing_ok=True)
        file = self.folder / "metrics.jsonl"
        kept = [line for line in _lines_of(file) if line["step"] < step] if network.is_resumed else []
        if kept:
            self._seconds_before = kept[-1].get("seconds", 0.0)
            temporary = file.with_name(f"{file.name}.{os.getpid()}")
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
            temporary.replace(file)
        else:
            file.unlink(missing_ok=True)
        _written.add(self.folder)
        self._first_step = step

    def _summary(self, network: Any, spec: dict[str, Any], counted: dict[str, Any]) -> dict[str, Any]:
        """All but the outcome. counted: the classes of the network's record."""
        seeds = spec["seeds"]
        section = object_of(json.loads(self.source)["network"])
        point = {f"/network/{_escaped(name)}": value for name, value in section.items()}
        point |= {f"/settings/{_escaped(name)}": value for name, value in spec.get("settings", {}).items()}
        identity = {name: member for name, member in spec.items() if name != "name"}
        resumed = {}
        if network.is_resumed:
            message = f"went on after step {max(0, self._first_step - 1)}, with the network's state of a checkpoint"
            resumed = {"pointer": "/network", "message": message, "mark": "resumed"}
        return {
            "schema_version": 1,
            "run_id": hashlib.sha256(_canonical(identity).encode()).hexdigest()[:16],
            "name": spec["name"],
            "error": None,
            "seeds": seeds,
            **({"seed": seeds["network"]} if len(set(seeds.values())) == 1 else {}),
            "point": point,
            "loss": loss_of(spec["network"]["classes"], counted),
            "warnings": [resumed] if resumed else [],
            "twin_omits": list(TWIN_OMITS),
            "provenance": {
                "version": json.loads(network.identity())["version"],
                "commit": "unknown",
                "host": socket.gethostname(),
                "compiler": platform.python_compiler(),
                "libraries": {"Python": platform.python_version()}
                | {name: metadata.version(name) for name in LIBRARIES if name in sys.modules and _is_installed(name)},
                "started": self._started,
                "finished": _utc(),
            },
        }


def members_of_line(losses: Mapping[str, Any], tokens: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a line that are given; numbers that are not finite are None. Raises: UnusableArgument."""
    found: dict[str, Any] = {}
    for name, value in losses.items():
        if value is not None:
            found["train_loss" if name == "training_loss" else name] = finite_or_none(number_of(name, value))
    if tokens is not None:
        found["tokens"] = integer("tokens", tokens, 0)
    for name, value in columns.items():
        if not NAME.fullmatch(name):
            raise UnusableArgument(f"{name!r}: got this name of a column, want letters, digits and _, such as "
                                   "learning_rate")  # fmt: skip
        if name in TAKEN:
            raise UnusableArgument(f"{name}: got a column of this name, want {TAKEN[name]}")
        if name in KNOWN_INTEGERS:
            found[name] = integer(name, value, KNOWN_INTEGERS[name])
            continue
        found[name] = finite_or_none(number_of(name, value))
        least = KNOWN_NUMBERS.get(name)
        if least is not None and not (found[name] is not None and found[name] >= least):
            raise UnusableArgument(f"{name}: got {value!r}, want a number from {least} on")
    return found


def number_of(name: str, value: Any) -> int | float:
    """A number, also numpy's or a tensor's with one element. Raises: UnusableArgument."""
    given = value
    if not isinstance(value, int | float) and callable(getattr(value, "item", None)):
        with suppress(ValueError, RuntimeError):  # of several elements
            value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = repr(given)
        raise UnusableArgument(f"{name}: got {text if len(text) <= 60 else text[:57] + '...'} "
                               f"({type(given).__name__}), want a number")  # fmt: skip
    return int.__int__(value) if isinstance(value, int) else float.__float__(value)


def finite_or_none(value: int | float) -> int | float | None:
    return value if math.isfinite(value) else None


def integer(name: str, value: Any, least: int) -> int:
    """Raises: UnusableArgument."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number < 2**64:
        raise UnusableArgument(f"{name}: got {value!r}, want an integer from {least} on")
    return number


def settings_of(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """The user's hyperparameters, which are numbers, texts and booleans. Raises: UnusableArgument."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise UnusableArgument(f"settings: got {type(settings).__name__}, want names with values, such as "
                               '{"learning_rate": 0.001}')  # fmt: skip
    try:
        plain = json.loads(json_text(settings, "settings"))
    except UnusableValue as error:
        raise UnusableArgument(str(error)) from None
    for name, value in plain.items():
        if not isinstance(value, str | int | float):
            raise UnusableArgument(f"settings/{name}: got {json.dumps(value)[:60]}, want a number, a text or a boolean")
    return plain


def own_seeds_of(seed: Any, seeds: Mapping[str, Any] | None) -> dict[str, int]:
    """The program's seeds of weights and data as far as they are given. Raises: UnusableArgument."""
    if seed is not None and seeds is not None:
        raise UnusableArgument("seed, seeds: got both, want one of them")
    if seed is not None:
        return dict.fromkeys(SEEDS, integer("seed", seed, 0))
    if seeds is None:
        return {}
    if not isinstance(seeds, Mapping) or not set(seeds) <= set(SEEDS):
        raise UnusableArgument(f'seeds: got {seeds!r}, want {{"weights": 1, "data": 1}}')
    return {name: integer(f"seeds/{name}", value, 0) for name, value in seeds.items()}


def seeds_of_run(own: Mapping[str, int], network: int) -> dict[str, int]:
    """own: as far as they are given; else those of the environment, else the network's. Raises: UnusableArgument."""
    found = {}
    for name in SEEDS:
        variable = f"DROPTEST_{name.upper()}_SEED"
        text = os.environ.get(variable)
        if name in own:
            found[name] = own[name]
        elif text is None:
            found[name] = network
        elif re.fullmatch("[0-9]+", text, re.ASCII):
            found[name] = integer(variable, int(text), 0)
        else:
            raise UnusableArgument(f"{variable}: got {text!r}, want an integer from 0 on")
    return found | {"network": network}


def loss_of(classes: Mapping[str, Any], counted: Mapping[str, Any]) -> dict[str, Any]:
    """summary.json's `loss` of a network's classes. Rates that the process does not say are those that the packets
    had to expect, and so are mean bursts."""
    found: dict[str, Any] = {}
    for name, section in classes.items():
        halves = object_of(object_of(counted.get(name)).get("halves"))
        found[name] = {}
        for half in HALVES:
            process = object_of(object_of(section).get(half)).get("loss", {"model": "none"})
            model, counts = loss_model.from_spec(process), object_of(halves.get(half))
            rate = model.loss_rate if math.isfinite(model.loss_rate) else counts.get("configured_rate")
            burst = counts.get("configured_mean_burst_packets", model.mean_burst_packets)
            burst = burst if burst is not None and math.isfinite(burst) else None
            found[name][half] = {"model": model.model, "loss_rate": rate, "mean_burst_packets": burst}
    return found


def _idle(network: Any, counts: Mapping[str, Any]) -> str:
    """Why this rank loses nothing of a run with loss: it has sent nothing that can be lost. Empty: it has, or the
    network cannot lose. counts: the record of this rank."""
    if not any(network.can_lose(name) for name in CLASSES[1:]):
        return ""
    sections = object_of(object_of(counts.get("network")).get("classes"))
    for name, of_class in object_of(counts.get("classes")).items():
        for half in HALVES:
            section = object_of(object_of(sections.get(name)).get(half))
            is_lossy = object_of(section.get("loss")).get("model", "none") != "none" or bool(section.get("links"))
            if is_lossy and object_of(object_of(object_of(of_class).get("halves")).get(half)).get("packets"):
                return ""
    return ("the network can lose packets, but the program has sent none through it that can be lost, so this is no "
            "run with loss; want attach(), or another layer of droptest, and more than one rank")  # fmt: skip


def _is_swept(folder: Path) -> bool:
    """Whether a sweep has started the program, which writes the spec and the summary itself."""
    named = os.environ.get("DROPTEST_RUN_FOLDER")
    return bool(named) and Path(named).resolve() == folder.resolve()


def _check_is_of_program(folder: Path) -> None:
    """Raises: UnusableArgument for the folder of a run of droptest, or of a sweep."""
    try:
        spec = json.loads((folder / "spec.json").read_text())
    except (OSError, ValueError):
        return
    if not isinstance(spec, dict) or not set(spec) <= MEMBERS_OF_SPEC:
        raise UnusableArgument(f"statistics: got {folder}, where another run has its spec.json; want a folder of this "
                               "run's own")  # fmt: skip


def _taken(lock: Path) -> IO[str] | None:
    """The lock of a run's folder, as droptest takes it (docs/records.md); None: the file system has none. Raises:
    UnusableArgument where another process has it."""
    for look in range(LOOKS):
        file = lock.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # also of a process that looks at it for a moment
            file.seek(0)
            holder = file.readline().strip() or "another process"
            file.close()
            if look == LOOKS - 1:
                raise UnusableArgument(f"statistics: got {lock.parent}, on which {holder} is at work; want a folder of "
                                       "this run's own") from None  # fmt: skip
            time.sleep(0.002)
        except OSError:
            file.close()
            return None
        else:
            file.truncate(0)
            file.write(f"process {os.getpid()} on host {socket.gethostname()}\n")
            file.flush()
            return file
    return None


def _lines_of(file: Path) -> list[dict[str, Any]]:
    """Those that are whole."""
    found = []
    try:
        rows = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    for row in rows:
        try:
            line = json.loads(row)
        except ValueError:
            continue
        if isinstance(line, dict) and type(line.get("step")) is int:
            found.append(line)
    return found


def _write(file: Path, value: Any) -> None:
    """Whole or not at all."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")
    temporary.replace(file)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _name(folder: Path) -> str:
    """That of the experiment: of the folder above, in the letters that the name of an experiment may have."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", folder.resolve().parent.name).lstrip(".")
    return name[:100] or "program"


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
