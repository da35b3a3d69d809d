# SPDX-License-Identifier: Apache-2.0
"""The commands of README.md and docs/: each is understood by the program that it calls, its specs are right, and those
that need no GPU, no cluster and no minute are run, on the pages' specs with fewer steps. Where a page shows output that
every machine prints alike, it is compared."""

import contextlib
import itertools
import json
import os
import re
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BINARY = os.environ.get("DROPTEST_BINARY", str(ROOT / "build/dev/experiments/droptest"))
PYTHON = "/usr/bin/python3"
PAGES = sorted(["README.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))])

# Commands that are parsed, but not run -> the reason.
NEEDS = {
    "mpirun": "a launcher; tests/experiments/test_launchers.py starts it",
    "srun": "a cluster",
    "sbatch": "a cluster",
    "--slurm": "a cluster; tests/experiments/test_slurm_arrays.py starts it",
    "torchrun": "PyTorch",
    "cmake": "minutes",
    "scripts/": "minutes; tests/scripts has them",
    "benchmarks/": "minutes; tests/benchmarks has them",
    "build/": "minutes",
    ".ci/run": "minutes",
    "nccl": "a GPU",
    "droptest doctor": "ports; tests/experiments/test_cli_doctor.py has it",
    "--if-busy": "another process; tests/experiments/test_cli_busy.py has it",
    "is busy": "another process; tests/experiments/test_cli_busy.py has it",
    "/checkpoint/every_steps": "a signal",
    "checkpoint show": "an interrupted run",
    "threshold.json": "minutes",
    "quickstart": "minutes",
    "results/crossed": "a day of runs",
    "results/mine": "runs of the reader",
    "own.json": "a program of the reader; tests/experiments/test_cli_commands.py has one",
    "results/own": "runs of the reader",
    "examples/torch/sweep.json": "PyTorch",
    "results/wall/": "a run of the reader",
    "finetuning": "minutes, and files of the reader; tests/experiments/test_cli_classification.py has smaller ones",
    "results/gpt2_sections": "runs of the reader",
    "results/sections": "runs of the reader",
    "results/pretrain_micro": "a run of the reader",
    "pretrained/micro": "a model of the reader",
}
ENVIRONMENT = r"[A-Z_]+=\S+"
SHELLS = ("", "sh", "shell", "bash", "console")
LAUNCHERS = ("mpirun", "srun", "torchrun")
EXACT = ("validate", "fates", "collective", "drift", "list", "schema")  # their output is that of every machine


@dataclass
class Command:
    page: str
    words: list
    output: list = field(default_factory=list)  # as the page shows it

    def __str__(self):
        return f"{self.page}: {shlex.join(self.words)}"

    @property
    def fails(self):
        return any(line.startswith("droptest: error:") for line in self.output)


def commands_of(page):
    """The commands of the page's blocks, and the JSON objects of its blocks, in order."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M):
        if language == "json":
            with contextlib.suppress(ValueError):
                found.append(json.loads(block))
        if language not in SHELLS:
            continue
        variables = dict(re.findall(r"^(\w+)=(\S+)$", block, re.M))
        lines = block.replace("\\\n", " ").splitlines()
        prompts = any(line.startswith("$ ") for line in lines)
        for line in lines:
            if prompts and not line.startswith("$ "):
                if found and isinstance(found[-1], Command):
                    found[-1].output.append(line)
                continue
            text = line.removeprefix("$ ")
            for name, value in variables.items():
                text = text.replace(f"${name}", value)
            text = re.sub(r"\s+#.*|\s+&$", "", text.replace("$droptest", "droptest"))
            text = re.sub(rf"^\s*({ENVIRONMENT}\s+)*", "", text)
            if prompts or is_program(text.split(" ")[0]):
                words = shlex.split(text)
                words[0] = re.sub(r"^build/\w+/experiments/droptest$", "droptest", words[0])
                found.append(Command(page, words))
    return found


def is_program(word):
    names = ("droptest", "python3", PYTHON, "cmake", "sbatch", *LAUNCHERS)
    return word in names or re.match(r"(\./)?(scripts|benchmarks|\.ci|build/\w+/(benchmarks|experiments))/", word)


def of_droptest(command):
    """The words after `droptest`, or None where another program is called."""
    words = [re.sub(r"^build/\w+/experiments/droptest$", "droptest", word) for word in command.words]
    if words[0] in LAUNCHERS:
        words = words[words.index("droptest") :] if "droptest" in words else words
    if words[0] == "sbatch":
        script = next(i for i, word in enumerate(words) if word.endswith(".sbatch"))
        words = ["droptest", "run", *words[script + 1 :]]
    return words[1:] if words[0] == "droptest" else None


def analysis_of(command):
    """The words after `python3 -m PACKAGE`, with the package, or None."""
    words = command.words
    return words[2:] if words[0] in ("python3", PYTHON) and words[1] == "-m" else None


COMMANDS = [c for page in PAGES for c in commands_of(page) if isinstance(c, Command)]


def call(words, cwd):
    """Runs a program."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_", "PMI_"))}
    if "-m" in words:
        environment["PYTHONPATH"] = str(ROOT / "analysis")
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)


def call_python(words, cwd, analysis):
    """Runs `python3 -m WORDS...`: that of the analysis in this process."""
    return analysis(words[1:], cwd) if words[0] == "droptest" else call([PYTHON, "-m", *words], cwd)


def test_the_pages_have_commands():
    programs = {command.words[0] for command in COMMANDS}
    assert {"droptest", "python3", "cmake", "mpirun", "sbatch", "./scripts/test"} <= programs and len(COMMANDS) > 60


@pytest.mark.parametrize("page", PAGES)
def test_each_call_of_the_program_on_a_page_is_found(page):
    """Calls in blocks of other languages, indented blocks, or behind words that hide them would not be tested."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", (ROOT / page).read_text(), re.S | re.M)
    call = r"^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\$?droptest|\S+/droptest) (?!.*: error:)[a-z]"
    shown = sum(len(re.findall(call, block, re.M)) for block in blocks)
    found = [command for command in COMMANDS if command.page == page and command.words[0] == "droptest"]
    assert len(found) >= shown, [str(command) for command in found]


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_is_understood(command, tmp_path, analysis):
    if (words := of_droptest(command)) is not None:
        # In an empty folder a command that is understood misses its files, or does its work. A page may show the error
        # of a command that is not understood.
        if words[0] not in ("list", "info", "fates", "collective", "drift", "schema"):
            ran = call([BINARY, *words], tmp_path)
            assert bool(re.search(r"see droptest .*--help", ran.stderr)) == ("swep" in words), ran.stderr
    elif (words := analysis_of(command)) is not None:
        ran = call_python(words, tmp_path, analysis)
        assert "usage:" not in ran.stderr and "No module" not in ran.stderr, ran.stderr
    elif command.words[0] == "cmake":
        presets = {p["name"] for p in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
        named = [value for word, value in itertools.pairwise(command.words) if word == "--preset"]
        assert set(named) <= presets
    elif command.words[0] in LAUNCHERS:  # of another program than droptest
        program = next(word for word in command.words if word.endswith(".py"))
        assert (ROOT / program).is_file() or program == "train.py", f"{program} is not in the source tree"
    else:
        program, *options = [word for word in command.words if word not in ("python3", PYTHON)]
        if program.startswith("build/"):
            assert (ROOT / "benchmarks" / f"{Path(program).name}.cc").is_file()
            return
        assert (ROOT / program).is_file(), f"{program} is not in the source tree"
        options = [word for word in options if word.startswith("--")]
        if options:
            ran = call([ROOT / program, "--help"], tmp_path)
            assert all(option.split("=")[0] in ran.stdout for option in options), ran.stdout + ran.stderr


RUNS = [c for c in COMMANDS if (of_droptest(c) or [""])[0] in ("run", "sweep", "search", "validate", "doctor", "plan")]


@pytest.mark.parametrize("command", RUNS, ids=str)
def test_a_command_has_a_right_spec(command, tmp_path):
    name, *words = of_droptest(command)
    overrides = [w for flag, value in itertools.pairwise(words) if flag == "--set" for w in (flag, value)]
    specs = [word for word in words if word.endswith(".json") and word.startswith("experiments/")]
    if not specs or command.fails:
        pytest.skip("a spec of the reader's")
    for spec in specs:
        ran = call([BINARY, "validate", "--spec-only", str(spec), *overrides], ROOT)
        assert ran.returncode == 0, ran.stderr
        one_run = name == "run" and "--run" not in words and not any(w.startswith("--array") for w in command.words)
        if one_run:
            assert "ok, 1 run" in ran.stdout, f"`droptest run` takes a spec of one run: {ran.stdout}"


def cut(spec):
    """The same spec with two steps."""
    spec = json.loads(json.dumps(spec))
    if "training" in spec:
        spec["training"].pop("epochs", None)
        spec["training"] |= {"steps": 2, "batch_sequences": 1, "accumulation": 1, "warmup_steps": 0}
        spec["validation"] = {"tokens": 128}
        spec.get("record", {}).pop("sample_every_steps", None)
        spec.get("record", {}).pop("every_steps", None)
        if "model" in spec and spec["model"].get("preset") not in ("nano", "micro"):
            spec["model"] = {"preset": "nano"}
    return spec


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    """A folder with the sources' specs, cut, and a corpus; commands of a page run in it one after the other."""
    folder = tmp_path_factory.mktemp("reader")
    for source in (ROOT / "experiments/specs").rglob("*"):
        target = folder / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".json":
            target.write_text(json.dumps(cut(json.loads(source.read_text()))))
        elif source.is_file():
            target.write_bytes(source.read_bytes())
    (folder / "corpus").mkdir()
    (folder / "corpus/kjv.txt").write_text("In the beginning was the packet. " * 4000)
    (folder / "sample.txt").write_text("and the packet was lost. " * 100)
    tiny = json.loads((folder / "experiments/specs/tiny.json").read_text())
    one = {key: value for key, value in tiny.items() if key not in ("sweep", "repeat", "record")} | {"name": "mine"}
    (folder / "spec.json").write_text(json.dumps(one))
    return folder


def with_real_folders(words, sandbox):
    """Run ids of the pages are those of uncut specs: the first run's there is takes their place."""

    def real(word):
        if match := re.fullmatch(r"(results/[\w-]+)/[0-9a-f]{16}", word):
            runs = sorted(run.parent for run in (sandbox / match[1]).glob("*/weights.safetensors"))
            return str(runs[0].relative_to(sandbox)) if runs else word
        return word

    return [real(word) for word in words]


def need_of(command):
    text = " ".join([shlex.join(command.words), *command.output])
    return next((reason for part, reason in NEEDS.items() if part in text), None)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page, sandbox, analysis):
    for found in commands_of(page):
        if not isinstance(found, Command):
            if "name" in found and "training" in found:
                (sandbox / "my.json").write_text(json.dumps(cut(found)))
            continue
        if need_of(found):
            continue
        words = with_real_folders(of_droptest(found) or [], sandbox)
        ran = call([BINARY, *words], sandbox) if words else call_python(analysis_of(found), sandbox, analysis)
        assert (ran.returncode != 0) == found.fails, f"{found}\n{ran.stdout}{ran.stderr}"
        if words and words[0] in EXACT:
            compare(found, ran)


def rounded(text):
    """Sums of floats differ in their last digits between processors."""
    return re.sub(r"\d+\.\d{6,}", lambda number: f"{float(number[0]):.5g}", text)


def compare(command, ran):
    """Each whole line of the page stands in the output, in order; a page may wrap JSON and leave lines out (...)."""
    if any(line.startswith("{") and len(line) > 2 for line in command.output):
        assert json.loads(rounded("".join(command.output))) == json.loads(rounded(ran.stdout))
        return
    printed = iter(rounded(ran.stdout + ran.stderr).splitlines())
    for line in filter(None, map(rounded, command.output)):
        if "..." not in line:
            assert any(line in other for other in printed), (
                f"{command}\nwant the line {line!r} of the page, got\n{ran.stdout}"
            )
