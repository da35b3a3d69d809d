# SPDX-License-Identifier: Apache-2.0
"""The order of the samples of an epoch can be computed as docs/data.md says, without droptest."""

import json
from pathlib import Path

VECTORS = Path(__file__).parents[1] / "vectors" / "sample_order.json"
WORD = 0xFFFFFFFF


def philox(key, counter):
    """Philox4x32-10 (Salmon et al. 2011)."""
    low, high = key & WORD, key >> 32
    words = list(counter)
    for _ in range(10):
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [(second >> 32) ^ words[1] ^ low, second & WORD, (first >> 32) ^ words[3] ^ high, first & WORD]
        low, high = (low + 0x9E3779B9) & WORD, (high + 0xBB67AE85) & WORD
    return words


def sample_at(seed, samples, epoch, index):
    """The sample at that place of the epoch."""
    bits = 1
    while bits < 31 and 1 << 2 * bits < samples:
        bits += 1
    mask = (1 << bits) - 1
    value = index
    while True:
        left, right = value >> bits, value & mask
        for number in range(8):
            word = philox(seed, [right, epoch & WORD, epoch >> 32, 19 << 16 | number])[0]
            left, right = right, (left ^ word) & mask
        value = left << bits | right
        if value < samples:
            return value


def test_the_vectors_follow_from_the_definition():
    for case in json.loads(VECTORS.read_text())["cases"]:
        place = (case["seed"], case["samples"], case["epoch"])
        assert [sample_at(*place, index) for index in case["index"]] == case["sample"]
