#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/pictures/all_reduce.svg: one all-reduce under loss, with the words that the docs use for its parts.

usage: docs/pictures/all_reduce.py [FILE]
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import FancyArrowPatch, Rectangle

RANKS = 4
COLOURS = ["#4c78a8", "#54a24b", "#b279a2", "#f2a541"]
LOST = "#d62728"
GREY = "#555555"
SIDE = 0.42  # of a packet
COLUMNS = (0.0, 8.0, 13.2)  # left edges: contributions, parts of the sum, results
SENDER, OWNER, REDUCE_PACKET = 2, 0, 1  # a packet that is lost in the reduce half
GATHER_OWNER, RECEIVER, GATHER_PACKET = 3, 1, 0  # and one in the gather half
PACKETS = 2  # of a part


def row(rank):
    return -2.1 * rank


def packet(axes, x, y, colour, state="arrived"):
    face = {"arrived": colour, "filled": "white", "short": colour}[state]
    edge = LOST if state != "arrived" else "white"
    axes.add_patch(
        Rectangle(
            (x, y),
            SIDE,
            SIDE,
            facecolor=face,
            edgecolor=edge,
            linewidth=2.2 if state != "arrived" else 1.2,
            zorder=2 if state != "arrived" else 1,
        )
    )
    if state == "filled":
        axes.text(x + SIDE / 2, y + SIDE / 2 - 0.01, "0", ha="center", va="center", fontsize=11, color=LOST, zorder=3)


def vector(axes, x, rank, state_of):
    for part in range(RANKS):
        for index in range(PACKETS):
            left = x + (part * PACKETS + index) * SIDE + part * 0.1
            packet(axes, left, row(rank), COLOURS[part], state_of(part, index))


def place(x, part, index):
    """The middle of a packet of a vector that begins at x."""
    return x + (part * PACKETS + index) * SIDE + part * 0.1 + SIDE / 2


def arrow(axes, start, end, lost=False):
    style = dict(arrowstyle="-|>", mutation_scale=13, linewidth=2.0 if lost else 0.9, color=LOST if lost else "#b8b8b8")
    axes.add_patch(FancyArrowPatch(start, end, shrinkA=0, shrinkB=2, linestyle="--" if lost else "-", **style))
    if lost:
        middle = [(a + b) / 2 for a, b in zip(start, end, strict=True)]
        axes.plot(*middle, marker="x", markersize=13, markeredgewidth=3.5, color=LOST)


def note(axes, x, y, text, to, align="center"):
    axes.annotate(
        text, xy=to, xytext=(x, y), ha=align, va="center", fontsize=11.5, color="black",
        arrowprops=dict(arrowstyle="-", color=GREY, linewidth=0.9, shrinkB=3),
    )  # fmt: skip


def draw():
    figure, axes = pyplot.subplots(figsize=(13.2, 6.6))
    contributions, sums, results = COLUMNS
    width = RANKS * PACKETS * SIDE + (RANKS - 1) * 0.1
    sum_width = PACKETS * SIDE
    for rank in range(RANKS):
        axes.text(-0.35, row(rank) + SIDE / 2, f"rank {rank}", ha="right", va="center", fontsize=12)
        vector(axes, contributions, rank, lambda part, index: "arrived")
        for index in range(PACKETS):
            short = rank == OWNER and index == REDUCE_PACKET
            packet(axes, sums + index * SIDE, row(rank), COLOURS[rank], "short" if short else "arrived")

        def result(part, index, rank=rank):
            if rank == RECEIVER and (part, index) == (GATHER_OWNER, GATHER_PACKET):
                return "filled"
            return "short" if (part, index) == (OWNER, REDUCE_PACKET) else "arrived"

        vector(axes, results, rank, result)
    for source in range(RANKS):
        for owner in range(RANKS):
            if source == owner:
                continue
            start, end = contributions + width + 0.12, sums - 0.1
            lost = (source, owner) == (SENDER, OWNER)
            arrow(axes, (start, row(source) + SIDE / 2), (end, row(owner) + SIDE / 2), lost)
            start, end = sums + sum_width + 0.12, results - 0.1
            lost = (source, owner) == (GATHER_OWNER, RECEIVER)
            arrow(axes, (start, row(source) + SIDE / 2), (end, row(owner) + SIDE / 2), lost)
    top = 1.65
    for x, text in (
        (contributions + width / 2, "each rank's contribution,\none part for each rank"),
        (sums + sum_width / 2, "each rank adds\nits own part"),
        (results + width / 2, "each rank's copy\nof the sum"),
    ):
        axes.text(x, top - 0.55, text, ha="center", va="center", fontsize=12.5, fontweight="bold")
    for x, text in (
        ((contributions + width + sums) / 2, "reduce half"),
        ((sums + sum_width + results) / 2, "gather half"),
    ):
        axes.text(x, top + 0.3, text, ha="center", va="center", fontsize=13.5, fontweight="bold", color=GREY)
    axes.text(
        contributions - 1.4, 2.75,
        "traffic class: tensor parallel, forward (the sum behind a row-parallel layer)        path: direct",
        ha="left", va="center", fontsize=12.5, color=GREY,
    )  # fmt: skip
    low = row(RANKS - 1) - 1.35
    note(axes, place(contributions, OWNER, REDUCE_PACKET) + 0.9, low, "packet: up to 1408 bytes of one part",
         (place(contributions, OWNER, REDUCE_PACKET), row(RANKS - 1)))  # fmt: skip
    note(axes, (contributions + width + sums) / 2 + 0.5, low - 0.75,
         "lost: rank 2's packet is missing from rank 0's sum,\non all ranks",
         ((contributions + width + sums) / 2, row(1) + SIDE / 2 - 0.2))  # fmt: skip
    note(axes, (sums + sum_width + results) / 2 + 0.4, low, "lost: rank 1 alone has no result",
         ((sums + sum_width + results) / 2, row(2) + SIDE / 2 - 0.2))  # fmt: skip
    note(axes, place(results, GATHER_OWNER, GATHER_PACKET) - 0.5, low - 0.75, "fill: zero in place of what is lost",
         (place(results, GATHER_OWNER, GATHER_PACKET), row(RECEIVER)))  # fmt: skip
    axes.set_xlim(-1.6, results + width + 0.2)
    axes.set_ylim(low - 1.2, 3.05)
    axes.set_aspect("equal")
    axes.axis("off")
    return figure


def main(file):
    # Text as text: small files that a browser sets in its own font.
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "all_reduce", "font.family": "DejaVu Sans"}):
        draw().savefig(file, bbox_inches="tight", metadata={"Date": None} if Path(file).suffix == ".svg" else None)


if __name__ == "__main__":
    if len(sys.argv) > 2 or (len(sys.argv) == 2 and sys.argv[1].startswith("-")):
        print(__doc__, file=sys.stdout if sys.argv[1:] == ["--help"] else sys.stderr)
        raise SystemExit(0 if sys.argv[1:] == ["--help"] else 2)
    main(sys.argv[1] if len(sys.argv) == 2 else Path(__file__).with_suffix(".svg"))
