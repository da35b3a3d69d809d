# SPDX-License-Identifier: Apache-2.0
"""Numbers of command lines: decimal, within ranges that errors name, for every option of every command."""

import re

import pytest
from cli_harness import run

# Texts that C's rules take for numbers, or for an absent one.
ODD_INTEGERS = ["", " 7", "7 ", "+7", "-1", "0x10", "1e3", "1.0", "7,8", "7x", "١", "18446744073709551616"]
ODD_NUMBERS = ["", " 1", "+1", "nan", "inf", "0x1p0", "1,0", "1e999", "-1"]
ODD_SIZES = ["", "-1KiB", "nan", "0x10", "1e-3", "16  KiB", "KiB", "1KiBB", "1Kb2", "99999999999GiB"]


def options_with_numbers(tmp_path):
    """(command, option, type in words) of each option that takes a number, from the help of all commands."""
    top = run("--help", cwd=tmp_path).out
    found = []
    for command in re.findall(r"^  ([a-z]+) {2,}", top.split("Subcommands:")[1], re.MULTILINE):
        text = run(command, "--help", cwd=tmp_path).out
        for option, kind in re.findall(r"^  (?:-\w,)?(--[\w-]+) (INT|UINT|FLOAT|SIZE)\b", text, re.MULTILINE):
            found.append((command, option, kind))
    return found


def test_every_option_takes_decimal_numbers_alone(tmp_path):
    found = options_with_numbers(tmp_path)
    assert len(found) > 25 and {kind for _, _, kind in found} == {"INT", "FLOAT", "SIZE"}
    for command, option, kind in found:
        for text in {"INT": ODD_INTEGERS, "FLOAT": ODD_NUMBERS, "SIZE": ODD_SIZES}[kind]:
            if option == "--prompt-tokens" and text == "7,8":
                continue
            arguments = [f"{option}={text}"] if text else [option, ""]
            error = run(command, *arguments, cwd=tmp_path, expect=2).err.splitlines()[0]
            assert error.startswith(f'droptest: error: {option}: got "'), (command, option, text, error)
            assert re.search(r", want (an integer|a number|a size) from [\d.]+ to [\d^.]+", error), error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["run", "--run", "0"], '--run: got "0", want an integer from 1 to 10000'),
        (["fates", "--seed", "-1"], '--seed: got "-1", want an integer from 0 to 2^64 - 1'),
        (["collective", "--ranks", "65535"], '--ranks: got "65535", want an integer from 1 to 65534'),
        (["watch", "--interval", "0.05"], '--interval: got "0.05", want a number from 0.1 to 3600'),
        (["doctor", "--to-bytes", "1"], '--to-bytes: got "1", want a size from 4 to 17179869184 bytes'),
        (["generate", "--prompt-tokens", "1,,2"], 'got "", want an integer from 0 to 2147483647 as value 2 of "1,,2"'),
        (["generate", "--prompt-tokens", "1,2,"], 'got "", want an integer from 0 to 2147483647 as value 3 of "1,2,"'),
        (["generate", "--prompt-tokens", "1,-2"], 'got "-2", want an integer from 0 to 2147483647 as value 2 of'),
    ],
)
def test_a_number_out_of_its_range_is_named_with_it(tmp_path, arguments, error):
    assert error in run(*arguments, cwd=tmp_path, expect=2).err


LOSS = ["--loss", '{"model": "bernoulli", "loss_rate": 0.5}', "--class", "tp_forward"]


def test_leading_zeros_are_decimal(tmp_path):
    def fates(seed):
        return run("fates", *LOSS, "--count=100", f"--seed={seed}", cwd=tmp_path).out

    assert fates("010") == fates("10") != fates("8")
    assert fates("18446744073709551615") != fates("0")


@pytest.mark.parametrize("command", ["collective", "drift"])
def test_tensors_that_do_not_fit_into_memory_are_refused_before_they_are_made(tmp_path, command):
    error = run(command, "--ranks=8", "--elements=1000000000000", *LOSS[:2], cwd=tmp_path, expect=2).err
    assert re.search(
        r"--elements: got 1000000000000, which take \d+ GiB on 8 ranks; want as few as fit into the", error
    )


def test_small_rates_are_not_printed_as_zero(tmp_path):
    loss = '{"model": "bernoulli", "loss_rate": 2e-8}'
    out = run("fates", "--loss", loss, "--class=tp_forward", "--count=10", cwd=tmp_path).out
    assert "rate 0.000000 (configured 2e-08, z" in out


@pytest.mark.parametrize(
    "text", ["4", "4 B", "16GiB", "16 gib", "16G", "16Gi", "4e3", "17.1GB", "0.01TB", "16384MiB", "17179869.184kB"]
)
def test_a_size_has_a_unit_of_1024_or_1000(tmp_path, text):
    assert "SPEC is required" in run("doctor", "--to-bytes", text, cwd=tmp_path, expect=2).err


@pytest.mark.parametrize("text", ["3", "16.1GiB", "17.2GB", "0.02TiB", "17179869.185kB"])
def test_a_size_out_of_its_range_is_refused_in_any_unit(tmp_path, text):
    error = f'--to-bytes: got "{text}", want a size from 4 to 17179869184 bytes, as 4096, 4KiB or 1.5GB'
    assert error in run("doctor", "--to-bytes", text, cwd=tmp_path, expect=2).err
