# SPDX-License-Identifier: Apache-2.0
"""Do bursts of lost packets cost more than independent losses at the same rate? Run it where corpus/kjv.txt is."""

import droptest

INDEPENDENT = {"model": "bernoulli", "loss_rate": "20%"}
BURSTS = {"model": "gilbert_elliott", "loss_rate": "20%", "mean_burst_packets": 8}

records = droptest.sweep(
    {
        "name": "bursts",
        "model": {"preset": "nano", "layers": 2, "width": 64, "heads": 4, "context": 64},
        "data": {"text": "corpus/kjv.txt"},
        "parallel": {"tensor": 4},
        "network": {"path": "direct", "payload_bytes": 256},
        "training": {"steps": 60, "batch_sequences": 4, "learning_rate": 0.003},
        "validation": {"every_steps": 20, "tokens": 4096},
        "sweep": {"cross": {"/network/loss": [{"model": "none"}, INDEPENDENT, BURSTS]}},
        "repeat": {"seeds": 3},
    }
)

# One row per point: means over three seeds, differences paired by seed with their 95 % intervals.
points = droptest.points(records)
columns = ["series", "loss_rate", "final_mean", "difference_mean", "difference_low", "difference_high"]
print(points[columns].to_string(index=False, float_format="%.3f", na_rep="-"))

# The runs lost the packets that the process loses: the same function of seed, link and index.
lost = droptest.fates(BURSTS, 10_000)
bursts = (lost & ~lost.shift(fill_value=False)).sum()
print(f"\n{lost.mean():.3f} of the first 10,000 packets are lost, in bursts of {lost.sum() / bursts:.1f}")

# Every frame as CSV, and a figure with the numbers behind it.
records.to_csv("results/bursts/tables")
droptest.plots.data("final_loss", records).to_csv("results/bursts/tables/final_loss.csv", index=False)
droptest.plots.draw("final_loss", records).savefig("results/bursts/final_loss.png")
