#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/parallelism.md: groups.svg (ranks, groups and traffic classes), buckets.svg (a step of a
replica in time) and zero.svg (the memory of a rank with ZeRO 0 to 3).

usage: docs/pictures/parallelism.py [FOLDER]
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

COLOURS = ["#4c78a8", "#54a24b", "#b279a2", "#f2a541"]
FORWARD, GRADIENT = "#4c78a8", "#d9762b"
GREY = "#555555"
PALE = "#e9e9e9"


def box(axes, x, y, width, height, text, colour=PALE, size=12):
    axes.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.06", facecolor=colour, edgecolor=GREY, linewidth=1)
    )
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size)


def bar(axes, x, y, width, height, colour, text="", size=10):
    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="white", linewidth=1.2))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size)


def both_ways(axes, start, end, colour):
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="<|-|>", mutation_scale=16, linewidth=2, color=colour, shrinkA=6, shrinkB=6
        )
    )


def plain(axes, left, right, low, high):
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    axes.axis("off")


def groups():
    """Data 2 x tensor 2: two replicas, each cut in two."""
    figure, axes = pyplot.subplots(figsize=(13, 5.2))
    wide, high = 3.6, 1.1
    left, right, upper, lower = 1.9, 10.6, 3.2, 0.0
    for replica, y in ((0, upper), (1, lower)):
        axes.text(0.2, y + high / 2, f"replica {replica}\n(data {replica})", ha="center", va="center", fontsize=13)
        for part, x in ((0, left), (1, right)):
            box(axes, x, y, wide, high, f"rank {2 * replica + part}\npart {part} of each layer")
        middle = y + high / 2
        both_ways(axes, (left + wide, middle), (right, middle), FORWARD)
        centre = (left + wide + right) / 2
        axes.text(
            centre, middle + 0.18, "tp_forward, tp_backward", ha="center", va="bottom", fontsize=12, color=FORWARD
        )
        axes.text(
            centre,
            middle - 0.18,
            "activations and their gradients,\nin every layer",
            ha="center",
            va="top",
            fontsize=10.5,
            color=GREY,
        )
    for part, x in ((0, left), (1, right)):
        centre = x + wide / 2
        both_ways(axes, (centre, lower + high), (centre, upper), GRADIENT)
        axes.text(
            centre + 0.2,
            (lower + high + upper) / 2,
            "dp_gradient: gradients, once a step\nparameter_gather: parameters, with ZeRO",
            ha="left",
            va="center",
            fontsize=10.5,
            color=GRADIENT,
        )
        axes.text(
            centre,
            lower - 0.3,
            f"data-parallel group {{{part}, {part + 2}}}",
            ha="center",
            va="top",
            fontsize=11,
            color=GRADIENT,
        )
    for replica, y in ((0, upper), (1, lower)):
        axes.text(
            right + wide + 0.25,
            y + high / 2,
            f"tensor-parallel\ngroup {{{2 * replica}, {2 * replica + 1}}}",
            ha="left",
            va="center",
            fontsize=11,
            color=FORWARD,
        )
    plain(axes, -0.8, 17.0, -0.8, 4.6)
    return figure


def buckets():
    """One step of a replica: gradients travel while the backward pass goes on."""
    figure, axes = pyplot.subplots(figsize=(11.5, 3.9))
    blocks = 4
    forward, backward = 1.0, 2.0
    for block in range(blocks):
        bar(axes, block * forward, 2.2, forward, 0.8, PALE, f"{block}")
        start = blocks * forward + (blocks - 1 - block) * backward
        bar(axes, start, 2.2, backward, 0.8, "#cfdcec", f"{block}")
    begin = blocks * forward
    end = begin + blocks * backward
    sends = [
        ("0", begin + 0.7, 0.6),
        ("1", begin + backward, 1.9),
        ("2", begin + 2 * backward, 1.9),
        ("3", begin + 3 * backward, 1.9),
        ("4", end, 1.5),
    ]
    for index, (name, start, width) in enumerate(sends):
        bar(axes, start, 0.9, width, 0.8, GRADIENT if index == len(sends) - 1 else "#f3c9a5", name, 11)
    last = sends[-1][1] + sends[-1][2]
    bar(axes, last, 2.2, 0.9, 0.8, "#bfe0ba", "update")
    for x, text in ((begin / 2, "forward pass"), ((begin + end) / 2, "backward pass of the last micro-batch")):
        axes.text(x, 3.2, text, ha="center", va="bottom", fontsize=12)
    axes.text(-0.2, 2.6, "compute,\nby block", ha="right", va="center", fontsize=12)
    axes.text(-0.2, 1.3, "network,\nby bucket", ha="right", va="center", fontsize=12)
    axes.text(
        (begin + end) / 2,
        0.65,
        "each bucket is sent when its last gradient is ready, while the pass goes on",
        ha="center",
        va="top",
        fontsize=11,
        color=GREY,
    )
    axes.text(
        last + 0.1, 1.3, "exposed: nothing is computed meanwhile", ha="left", va="center", fontsize=11, color=GRADIENT
    )
    axes.add_patch(FancyArrowPatch((0, 0.1), (last + 1.2, 0.1), arrowstyle="-|>", mutation_scale=14, color=GREY))
    axes.text(last + 1.25, 0.1, "time", ha="left", va="center", fontsize=11, color=GREY)
    plain(axes, -1.3, last + 4.6, -0.1, 3.7)
    return figure


def zero():
    """Four ranks; a colour is the part that one of them owns."""
    figure, axes = pyplot.subplots(figsize=(11.5, 5.6))
    ranks = len(COLOURS)
    part = 0.62
    columns = [("values", 0.0), ("gradients", 3.4), ("optimizer state", 6.8)]
    sharded = {"values": 3, "gradients": 2, "optimizer state": 1}
    for name, x in columns:
        axes.text(x + ranks * part / 2, 1.15, name, ha="center", va="bottom", fontsize=12.5, fontweight="bold")
    sends = [
        "all-reduce of gradients",
        "reduce-scatter of gradients,\nall-gather of parameters after the update",
        "the same, block by block",
        "and all-gather of each block's parameters\nahead of both passes",
    ]
    for stage in range(4):
        y = -1.75 * stage
        axes.text(-0.3, y + 0.3, f"ZeRO {stage}\nrank 1", ha="right", va="center", fontsize=12)
        for name, x in columns:
            for owner, colour in enumerate(COLOURS):
                held = stage < sharded[name] or owner == 1
                face = colour if held else "white"
                axes.add_patch(
                    Rectangle((x + owner * part, y), part, 0.7, facecolor=face, edgecolor="#cccccc", linewidth=1)
                )
            if stage >= sharded[name] and name != "optimizer state":
                axes.text(
                    x + ranks * part / 2,
                    y - 0.12,
                    "and room for two blocks",
                    ha="center",
                    va="top",
                    fontsize=10,
                    color=GREY,
                )
        axes.text(9.8, y + 0.35, sends[stage], ha="left", va="center", fontsize=11)
    plain(axes, -1.7, 15.6, -5.9, 1.7)
    return figure


def main(folder):
    # Text as text: small files that a browser sets in its own font.
    for draw in (groups, buckets, zero):
        with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": draw.__name__, "font.family": "DejaVu Sans"}):
            draw().savefig(Path(folder) / f"{draw.__name__}.svg", bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) > 2 or (len(sys.argv) == 2 and sys.argv[1].startswith("-")):
        print(__doc__, file=sys.stdout if sys.argv[1:] == ["--help"] else sys.stderr)
        raise SystemExit(0 if sys.argv[1:] == ["--help"] else 2)
    main(sys.argv[1] if len(sys.argv) == 2 else Path(__file__).parent)
