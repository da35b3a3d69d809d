# SPDX-License-Identifier: Apache-2.0
"""The copy task: each letter of every second block is that `distance` letters before."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/make_copy_task"


def text_of(tmp_path, *words):
    subprocess.run([SCRIPT, "--out", tmp_path / "copy.txt", *words], check=True)
    return (tmp_path / "copy.txt").read_bytes()


def test_every_second_block_is_the_one_before(tmp_path):
    text = text_of(tmp_path, "--distance", "50", "--pairs", "20", "--letters", "8")
    assert len(text) == 20 * 2 * 50
    assert set(text) == set(b"abcdefgh")
    blocks = [text[begin : begin + 50] for begin in range(0, len(text), 50)]
    assert blocks[0::2] == blocks[1::2]
    assert len(set(blocks)) == 20, "blocks of different pairs are apart"


def test_blanks_follow_the_symbols_of_a_block(tmp_path):
    text = text_of(tmp_path, "--distance", "50", "--pairs", "20", "--letters", "8", "--symbols", "10")
    blocks = [text[begin : begin + 50] for begin in range(0, len(text), 50)]
    assert blocks[0::2] == blocks[1::2]
    assert all(block[10:] == b"_" * 40 and set(block[:10]) <= set(b"abcdefgh") for block in blocks)


def test_letters_of_a_block_are_uniform(tmp_path):
    text = text_of(tmp_path, "--pairs", "100", "--letters", "4")
    first = b"".join(text[begin : begin + 1000] for begin in range(0, len(text), 2000))
    deviation = (len(first) * 0.25 * 0.75) ** 0.5
    assert all(abs(first.count(letter) - len(first) / 4) < 5 * deviation for letter in b"abcd")


def test_a_seed_is_a_text(tmp_path):
    assert text_of(tmp_path, "--pairs", "2") == text_of(tmp_path, "--pairs", "2", "--seed", "1")
    assert text_of(tmp_path, "--pairs", "2") != text_of(tmp_path, "--pairs", "2", "--seed", "2")


@pytest.mark.parametrize("words", [("--letters", "1"), ("--distance", "0"), ("--symbols", "1001")])
def test_sizes_without_meaning_are_refused(tmp_path, words):
    ran = subprocess.run([SCRIPT, "--out", tmp_path / "copy.txt", *words], capture_output=True, text=True)
    assert ran.returncode == 2
    assert f"{words[0]}: got {words[1]}, want" in ran.stderr or "--distance and --pairs: got 0" in ran.stderr
    assert not (tmp_path / "copy.txt").exists()
