#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/pictures/sequence_parts.svg and sequence_exchange.svg: which rank has which tokens, and which it gets.

usage: docs/pictures/sequence.py [FOLDER]
"""

import itertools
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import FancyArrowPatch, Rectangle

COLOURS = ["#4c78a8", "#54a24b", "#b279a2", "#f2a541"]
GREY = "#555555"
TOKENS = 18


def even(length, parts):
    """Begin and end of each part; the first ones are one longer."""
    ends = [0]
    for part in range(parts):
        ends.append(ends[-1] + length // parts + (part < length % parts))
    return list(itertools.pairwise(ends))


def plain(axes, left, right, bottom, top):
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_aspect("equal")
    axes.axis("off")


def box(axes, x, y, colour, text="", width=1.0, height=1.0):
    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="white", linewidth=1.4))
    axes.text(x + width / 2, y + height / 2 - 0.03, text, ha="center", va="center", fontsize=10, color="white")


def sequence_parts():
    """18 tokens on four ranks; a colour is a rank."""
    figure, axes = pyplot.subplots(figsize=(11.5, 3.6))
    chunks = even(TOKENS, 8)
    owners = {
        "ulysses and ring": [r for r, (a, b) in enumerate(even(TOKENS, 4)) for _ in range(a, b)],
        "zigzag": [min(c, 7 - c) for c, (a, b) in enumerate(chunks) for _ in range(a, b)],
    }
    for row, (name, ranks) in enumerate(owners.items()):
        y = -2.6 * row
        axes.text(-0.4, y + 0.5, name, ha="right", va="center", fontsize=12, fontweight="bold")
        work = [0] * 4
        for token, rank in enumerate(ranks):
            box(axes, token, y, COLOURS[rank], str(token))
            work[rank] += token + 1
        text = "pairs of query and key: " + ", ".join(f"rank {r} {n}" for r, n in enumerate(work))
        axes.text(0, y - 0.25, text, ha="left", va="top", fontsize=11, color=GREY)
    for rank, colour in enumerate(COLOURS):
        box(axes, 2.6 * rank, 1.9, colour, width=0.7, height=0.7)
        axes.text(2.6 * rank + 0.9, 2.22, f"rank {rank}", ha="left", va="center", fontsize=11)
    plain(axes, -5.2, TOKENS + 0.5, -3.7, 2.8)
    return figure


def sequence_exchange():
    """Left Ulysses, right a ring; rows are heads."""
    figure, axes = pyplot.subplots(figsize=(11.5, 4.6))
    ranks = 4
    axes.text(2, 5.1, "ulysses: tokens for heads", ha="center", fontsize=12, fontweight="bold")
    for head in range(ranks):
        for rank in range(ranks):
            box(axes, rank, ranks - 1 - head, COLOURS[rank])
            box(axes, 6 + rank, ranks - 1 - head, COLOURS[head])
        axes.text(-0.2, ranks - 0.5 - head, f"head {head}", ha="right", va="center", fontsize=10.5)
    axes.text(2, -0.3, "tokens, before attention", ha="center", va="top", fontsize=10.5, color=GREY)
    axes.text(8, -0.3, "in attention", ha="center", va="top", fontsize=10.5, color=GREY)
    axes.add_patch(FancyArrowPatch((4.25, 2), (5.75, 2), arrowstyle="-|>", mutation_scale=16, color=GREY))
    axes.text(5, 2.2, "all-to-all", ha="center", va="bottom", fontsize=10.5, color=GREY)
    axes.text(15, 5.1, "ring: keys and values travel", ha="center", fontsize=12, fontweight="bold")
    for hop in range(ranks):
        y = ranks - 1 - hop
        axes.text(12.7, y + 0.5, "own" if hop == 0 else f"hop {hop}", ha="right", va="center", fontsize=10.5)
        for rank in range(ranks):
            box(axes, 13 + rank, y, COLOURS[(rank - hop) % ranks])
    for rank in range(ranks):
        axes.text(13.5 + rank, ranks + 0.1, str(rank), ha="center", va="bottom", fontsize=10.5)
    axes.text(
        15,
        -0.3,
        "whose keys and values the queries\nof each rank (column) meet",
        ha="center",
        va="top",
        fontsize=10.5,
        color=GREY,
    )
    plain(axes, -1.8, 18, -1.6, 5.7)
    return figure


def main(folder):
    for draw in (sequence_parts, sequence_exchange):
        with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": draw.__name__, "font.family": "DejaVu Sans"}):
            draw().savefig(Path(folder) / f"{draw.__name__}.svg", bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) > 2 or (len(sys.argv) == 2 and sys.argv[1].startswith("-")):
        print(__doc__, file=sys.stdout if sys.argv[1:] == ["--help"] else sys.stderr)
        raise SystemExit(0 if sys.argv[1:] == ["--help"] else 2)
    main(sys.argv[1] if len(sys.argv) == 2 else Path(__file__).parent)
