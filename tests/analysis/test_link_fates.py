# SPDX-License-Identifier: Apache-2.0
"""`droptest fates` without the compiled program: the options and texts of the program, by the library."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from synthetic import NONE, PACKAGES, ROOT, bernoulli, gilbert_elliott

import droptest
from droptest import library, link_fates
from droptest.__main__ import main

BINARY = os.environ.get("DROPTEST_BINARY", str(ROOT / "build/dev/experiments/droptest"))
BUILT = Path(BINARY).parents[1] / "api" / library.FILE_NAME
pytestmark = pytest.mark.skipif(
    not (os.path.exists(BINARY) and BUILT.exists()), reason=f"no {BINARY} with {BUILT}: set DROPTEST_BINARY"
)
LOSSES = {
    "none": NONE,
    "certain": bernoulli(1),
    "Bernoulli": bernoulli(0.1),
    "rare": bernoulli(2e-5),
    "Gilbert-Elliott": gilbert_elliott("20%", 4),
    "four states": {"model": "four_state", "p13": 0.05, "p31": 0.4},
    "trace": {"model": "trace", "file": "recorded.txt"},
    "trace from anywhere": {"model": "trace", "file": "recorded.txt", "start": "random"},
    "pattern": {"model": "pattern", "every": 5},
    "outage": {"model": "outage", "windows": [{"from_step": 3, "to_step": 5}], "otherwise": bernoulli(0.2)},
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where there is a library, and no compiled program."""
    # Tests in the same process have loaded this library, or one that says the same.
    monkeypatch.setenv("DROPTEST_LIBRARY", str(BUILT))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DROPTEST_BINARY", "")
    monkeypatch.setattr("droptest.program.__file__", str(tmp_path / "tree/analysis/droptest/program.py"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recorded.txt").write_text("0001100000100000000111000")
    return tmp_path


def of_program(*words):
    return subprocess.run([BINARY, "fates", *words], capture_output=True, text=True, check=False)


def options(loss, **values):
    pairs = {"class": "tp_forward", "count": 1000} | values
    return ["--loss", json.dumps(loss), *(word for name, value in pairs.items() for word in (f"--{name}", str(value)))]


def equals_the_program(capsys, words):
    theirs = of_program(*words)
    assert theirs.returncode == 0, theirs.stderr
    assert main(["fates", *words]) == 0
    assert capsys.readouterr().out == theirs.stdout
    return theirs.stdout


@pytest.mark.parametrize("how", link_fates.FORMATS)
@pytest.mark.parametrize("name", LOSSES)
def test_every_format_has_the_text_of_the_compiled_program(capsys, name, how):
    equals_the_program(capsys, options(LOSSES[name], format=how, seed=7))


@pytest.mark.parametrize("how", link_fates.FORMATS)
@pytest.mark.parametrize(("first", "count"), [(0, 0), (777, 1), (640, 64), (3, 3_000_000), (2**48 - 10, 5000)])
def test_every_range_has_the_text_of_the_compiled_program(capsys, first, count, how):
    equals_the_program(capsys, options(gilbert_elliott("5%", 8), first=first, count=count, format=how))


def test_every_link_seed_and_step_has_the_text_of_the_compiled_program(capsys):
    seen = set()
    links = [
        {"src": 3, "dst": 2},
        {"dst": 65535},
        {"src": 65533, "dst": 65533},
        {"half": "gather"},
        {"seed": 2**64 - 1},
    ]
    for link in links:
        seen.add(equals_the_program(capsys, options(bernoulli(0.1), format="bits", **link)))
    for name in ("outage", "Bernoulli"):
        for step in (3, 5):
            seen.add(equals_the_program(capsys, options(LOSSES[name], format="bits", step=step)))
    assert len(seen) == len(links) + 3  # a step matters to the outage only


def test_every_class_has_the_text_of_the_compiled_program_in_the_halves_that_it_has(capsys):
    refused = []
    for name, half in itertools.product(library.CLASSES, library.HALVES):
        words = options(bernoulli(0.1), format="json", **{"class": name, "half": half})
        if main(["fates", *words]) == 0:
            assert capsys.readouterr().out == of_program(*words).stdout
        else:
            refused.append((name, half))
            error = capsys.readouterr().err
            assert "only the compiled program has an answer" in error
            assert ("--class: got control" if name == "control" else f"--half: got reduce of the class {name}") in error
    gathered = ("parameter_gather", "pp_activation", "pp_gradient", "sequence_forward")
    assert refused == [("control", "reduce"), ("control", "gather"), *((name, "reduce") for name in gathered)]


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"message": 3}, "--message: got 3"),
        ({"src": 65534}, "--src: got 65534"),
        ({"dst": 65534}, "--dst: got 65534"),
        ({"first": 2**48}, "--first: got 281474976710656"),
    ],
)
def test_an_option_that_only_the_compiled_program_answers_is_named(capsys, values, option):
    assert main(["fates", *options(bernoulli(0.1), **values)]) == 2
    error = capsys.readouterr().err
    assert f"fates: {option}, to which only the compiled program has an answer" in error
    assert of_program(*options(bernoulli(0.1), **values)).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (options(bernoulli(1.2)), "--loss/loss_rate: got 1.2, want a fraction in [0, 1]"),
        (options({"model": "trace", "file": "nothing.txt"}), "--loss/file: read nothing.txt: No such file"),
        (["--loss", "{", "--class", "tp_forward", "--count", "1"], "--loss: not JSON"),
        (["--loss", "{}}", "--class", "tp_forward", "--count", "1"], "--loss: not JSON"),
        (options(NONE, seed="-1"), "--seed: got '-1', want an integer from 0 to 18446744073709551615"),
        (options(NONE, count=2**33 + 1), "--count: got '8589934593', want an integer from 0 to 8589934592"),
        (options(NONE, format="xml"), "invalid choice: 'xml' (choose from 'runs', 'bits', 'json')"),
        (options(NONE, **{"class": "tp_forwar"}), "invalid choice: 'tp_forwar' (choose from 'control', 'tp_forward'"),
    ],
)
def test_an_option_with_a_wrong_value_is_refused_by_its_name(capsys, words, message):
    try:
        status = main(["fates", *words])
    except SystemExit as end:
        status = end.code
    assert status == of_program(*words).returncode == 2
    assert message in capsys.readouterr().err


def test_the_function_answers_without_the_compiled_program_as_with_it(monkeypatch):
    question = {"first": 100, "seed": 7, "source": 1, "destination": 0, "half": "gather"}
    by_library = droptest.fates(gilbert_elliott(np.float32(0.25), 4), 5000, **question)
    monkeypatch.setenv("DROPTEST_BINARY", BINARY)
    assert by_library.equals(droptest.fates(gilbert_elliott(0.25, 4), 5000, **question)) and by_library.sum() > 1000
    monkeypatch.setenv("DROPTEST_BINARY", "")
    with pytest.raises(
        droptest.CommandError, match=r"--message: got 2, to which only.*no droptest command.*cmake --build"
    ):
        droptest.fates(bernoulli(0.1), 10, message=2)
    with pytest.raises(droptest.CommandError, match="--class: got tp, want one of control, tp_forward"):
        droptest.fates(bernoulli(0.1), 10, traffic_class="tp")
    with pytest.raises(droptest.CommandError, match="--half: got both, want one of reduce, gather"):
        droptest.fates(bernoulli(0.1), 10, half="both")


def test_without_the_program_and_the_library_the_error_names_the_places_of_both(folder):
    program = "from droptest import __main__, program; import sys\n" \
              f"program.__file__ = {str(folder / 'tree/a/b/program.py')!r}\n" \
              "sys.argv = ['droptest', 'fates', '--loss', '{}', '--class', 'outer', '--count', '1']\n" \
              "sys.exit(__main__.command())"  # fmt: skip
    environment = {"PYTHONPATH": str(PACKAGES), "PATH": "/nothing", "DROPTEST_LIBRARY": str(folder / "nothing.so")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "PATH has no compiled droptest" in done.stderr and "nor is there a library that answers" in done.stderr
    assert f"DROPTEST_LIBRARY: got {folder / 'nothing.so'}" in done.stderr
