# SPDX-License-Identifier: Apache-2.0
"""`droptest fates` by libdroptest.so, where there is no compiled program: the same options, fates and texts."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from droptest import library
from droptest.library import LibraryError, NetworkError
from droptest.network import Flow, Network
from droptest.program import CommandError

FORMATS = ("runs", "bits", "json")
EVERY_RECEIVER = 65535
MOST_RANKS = 65534  # of the library's networks
MOST_INDICES = 2**48  # of a flow's packets; the bits above have the number of a process group
_A_PIECE = 2**20  # packets that are written at once


@dataclass(frozen=True)
class Question:
    """Which packets of a link are lost: the options of `droptest fates`. loss: its JSON text.

    The library has no answer to a class that never loses packets (control), the half of a class that has no such half,
    rank 65534, indices from 2^48 on, and a message after the first.
    """

    loss: str
    count: int
    first: int = 0
    seed: int = 1
    traffic_class: str = "tp_forward"
    source: int = 0
    destination: int = 1
    half: str = "reduce"
    step: int = 0
    message: int = 0

    def words(self) -> list[object]:
        """The words of the command."""
        return ["fates", "--loss", self.loss, "--seed", self.seed, "--class", self.traffic_class, "--src", self.source,
                "--dst", self.destination, "--half", self.half, "--first", self.first, "--count", self.count,
                "--step", self.step, "--message", self.message]  # fmt: skip

    def unanswered(self) -> str | None:
        """The first option that only the compiled program has an answer to, with its value."""
        ranks = (("--src", self.source), ("--dst", self.destination))
        options = (
            ("--class", self.traffic_class, self.traffic_class == "control"),
            *((name, rank, rank == MOST_RANKS) for name, rank in ranks),
            ("--first", self.first, self.first >= MOST_INDICES),
            ("--message", self.message, self.message != 0),
        )
        return next((f"{name}: got {value}" for name, value, beyond in options if beyond), None)


@dataclass(frozen=True)
class Answer:
    """lost: Shapes: (count,), bool. report: what `--format json` prints."""

    lost: np.ndarray
    report: dict[str, Any]


def answer(question: Question, no_program: CommandError) -> Answer:
    """The library's answer. no_program: why the compiled program does not answer, for questions that only it can.
    Raises: CommandError that names the option."""
    if question.traffic_class not in library.CLASSES:
        raise CommandError(f"fates: --class: got {question.traffic_class}, want one of {', '.join(library.CLASSES)}")
    if question.half not in library.HALVES:
        raise CommandError(f"fates: --half: got {question.half}, want one of {', '.join(library.HALVES)}")
    if beyond := question.unanswered():
        raise CommandError(f"fates: {beyond}, to which only the compiled program has an answer: {no_program}")
    try:
        loss = json.loads(question.loss)
    except ValueError as error:
        raise CommandError(f"fates: --loss: not JSON: {error}") from None
    to_all = question.destination == EVERY_RECEIVER
    ranks = 1 + max(question.source, 0 if to_all else question.destination)
    place = f"/network/classes/{question.traffic_class}/{question.half}"
    section = {"classes": {question.traffic_class: {question.half: {"loss": loss}}}}
    try:
        with Network({"network": section, "seed": question.seed}, rank=0, world_size=ranks) as network:
            network.set_step(question.step)
            flow = network.flow(question.traffic_class, question.source, None if to_all else question.destination,
                                half=question.half)  # fmt: skip
            return _of_flow(flow, question)
    except NetworkError as error:
        text = str(error).replace(f"{place}/loss", "--loss").partition("network: ")
        if f"{place}: " in text[2]:
            raise CommandError(f"fates: --half: got {question.half} of the class {question.traffic_class}, which has "
                               f"no such half, so that only the compiled program has an answer: {no_program}"
                               ) from None  # fmt: skip
        raise CommandError(f"fates: {text[2] or text[0]}") from None
    except LibraryError as error:
        raise CommandError(f"fates: {no_program}; nor is there a library that answers: {error}") from None


def _of_flow(flow: Flow, question: Question) -> Answer:
    return Answer(flow.fates(question.first, question.count), flow.report(question.first, question.count))


def text_of(found: Answer, how: str) -> Iterator[str]:
    """The output of the command in one of FORMATS, in pieces."""
    report = found.report
    if how == "json":
        yield json.dumps(report, separators=(",", ":"), ensure_ascii=False) + "\n"
        return
    yield from _bits(found.lost) if how == "bits" else _runs(found.lost, report["first"])
    burst, z = report["configured_mean_burst_packets"], report["z"]
    if z is None:  # the losses are certain, and others were found
        z = math.copysign(math.inf, report["realised_rate"] - report["loss_rate"])
    yield (
        f"# {report['lost']} of {report['packets']} packets lost: rate {_fraction(report['realised_rate'])} "
        f"(configured {_fraction(report['loss_rate'])}, z {z:+.2f}), mean burst {report['mean_burst_packets']:.3f} "
        f"packets (configured {math.inf if burst is None else burst:.3f})\n"
    )


def _fraction(rate: float) -> str:
    """Six decimals, and of small rates four digits: 2e-8 is not zero."""
    return f"{rate:.4g}" if rate != 0 and abs(rate) < 1e-4 else f"{rate:.6f}"


def _bits(lost: np.ndarray) -> Iterator[str]:
    """A character for each packet, 64 to a line."""
    for begin in range(0, len(lost), _A_PIECE):
        text = (lost[begin : begin + _A_PIECE].view(np.uint8) + ord("0")).tobytes().decode()
        yield "".join(f"{text[i : i + 64]}\n" for i in range(0, len(text), 64))


def _runs(lost: np.ndarray, first: int) -> Iterator[str]:
    """A line for each burst: the index of its first packet, and its length."""
    yield "first_packet burst_packets\n"
    changes = np.flatnonzero(lost[1:] != lost[:-1]) + 1
    ends = np.concatenate(([0] * bool(lost[:1].any()), changes, [len(lost)] * bool(lost[-1:].any()))).astype(np.uint64)
    begins, lengths = ends[::2] + np.uint64(first), ends[1::2] - ends[::2]
    for piece in range(0, len(begins), _A_PIECE):
        some = slice(piece, piece + _A_PIECE)
        lines = zip(begins[some].tolist(), lengths[some].tolist(), strict=True)
        yield "".join(f"{begin} {length}\n" for begin, length in lines)


def integer_to(most: int) -> Callable[[str], int]:
    """Reads an integer of the command line as the compiled program does."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) > most:
            raise argparse.ArgumentTypeError(f"got {text!r}, want an integer from 0 to {most}")
        return int(text)

    return read


def add_options(command: argparse.ArgumentParser) -> None:
    """Those of the compiled program."""
    number = {"metavar": "INT"}
    of_link = integer_to(2**63)
    command.add_argument("--loss", required=True, metavar="JSON", help="loss process (docs/specs.md)")
    command.add_argument("--seed", type=integer_to(2**64 - 1), default=1, **number, help="seed of the experiment (1)")
    command.add_argument("--class", dest="traffic_class", required=True, choices=library.CLASSES, metavar="CLASS",
                         help="traffic class, e.g. tp_forward")  # fmt: skip
    command.add_argument("--src", type=integer_to(65534), default=0, **number, help="world rank that sends (0)")
    receives = "world rank that receives (1); 65535: every receiver"
    command.add_argument("--dst", type=integer_to(EVERY_RECEIVER), default=1, **number, help=receives)
    command.add_argument("--half", choices=library.HALVES, default="reduce", help="half of the collective (reduce)")
    command.add_argument("--first", type=of_link, default=0, **number, help="index of the first packet (0)")
    command.add_argument("--count", type=integer_to(2**33), required=True, **number, help="number of packets")
    step = "training step, for losses that change over steps (0)"
    command.add_argument("--step", type=of_link, default=0, **number, help=step)
    message = "messages of the link before, for losses that change over time (0, without the compiled program)"
    command.add_argument("--message", type=of_link, default=0, **number, help=message)
    form = "runs (the default): a line for each burst; bits: a character for each packet"
    command.add_argument("--format", choices=FORMATS, default="runs", help=form)


def question_of(arguments: argparse.Namespace) -> Question:
    a = arguments
    return Question(a.loss, a.count, a.first, a.seed, a.traffic_class, a.src, a.dst, a.half, a.step, a.message)
