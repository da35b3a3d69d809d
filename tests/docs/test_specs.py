# SPDX-License-Identifier: Apache-2.0
"""The JSON of README.md and docs/: specs, parts of specs and networks of programs are right, as `droptest validate`
says. What is neither has its reason here."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BINARY = os.environ.get("DROPTEST_BINARY", str(ROOT / "build/dev/experiments/droptest"))
PAGES = sorted(["README.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))])

# First words of a block that is not a spec -> what it is. `shards` is checked against the schema of that name.
OTHERS = {
    '{"classification": {"examples"': "a part of a line of metrics.jsonl",
    '"compression": {"kind": "int8", "bytes"': "a part of loss_statistics.json",
    '{"schema_version": 1, "files"': "shards",
    '{"step": 11, "train_loss"': "lines of metrics.jsonl",
    '{"step": 10, "tokens"': "a line of metrics.jsonl",
    '{"step": 120, "seconds"': "a line of events.jsonl",
    '{"schema_version": 1, "name": "tiny"': "sweep.json",
}
# What a part of a spec stands in: every traffic class has traffic.
WHOLE = {"name": "whole", "data": {"text": "a.txt"}, "model": {"preset": "nano"}, "parallel": {"tensor": 2, "data": 2}}
# A page's parts need these members, too.
NEEDED = {
    "docs/local_sgd.md": {"parallel": {"tensor": 1}},
    "docs/paths.md": {"network": {"loss": {"model": "bernoulli", "loss_rate": "1%"}}},
    "docs/watching.md": {"checkpoint": {}},
}
# Files of the reader: the one error that the spec of a page has without them.
MISSING = {
    ("docs/classification.md", "pretrained"): "/model/pretrained: pretrained: no such folder",
    ("docs/kernels.md", "attention_library.so"): "the system does not load it",
}
OF_PROGRAMS = re.compile(r"docs/(pytorch|c_interface|jax|nccl_shim|commands)")  # pages with networks of programs


def blocks():
    """(page, text) of each block of JSON, whether it says so or only begins with a brace or a quote, and of each
    network that a command writes into a file, if it is no pattern of the shell's."""
    found = []
    for page in PAGES:
        for language, text in re.findall(r"^ *```(\w*)\n(.*?)^ *```", (ROOT / page).read_text(), re.S | re.M):
            if language == "json" or (language == "" and text.lstrip()[:1] in ("{", '"')):
                found.append((page, text))
            elif language in ("", "sh", "shell", "console", "bash"):
                networks = re.findall(r"""^(?:echo ')?(\{"(?:seed|network)".*\})(?:' >.*)?$""", text, re.M)
                found += [(page, network) for network in networks if "$" not in network]
    return found


BLOCKS = blocks()


def merged(whole, part):
    """A JSON merge patch (RFC 7396) without removals."""
    both = isinstance(whole, dict) and isinstance(part, dict)
    return {**whole, **{k: merged(whole.get(k), v) for k, v in part.items()}} if both else part


def validate(spec, folder):
    (folder / "spec.json").write_text(json.dumps(spec))
    return subprocess.run(
        [BINARY, "validate", "--spec-only", "spec.json"], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_pages_have_specs():
    assert len(BLOCKS) > 30
    assert all(any(text.strip().startswith(words) for _, text in BLOCKS) for words in OTHERS), (
        "a reason without a block"
    )


@pytest.mark.parametrize(("page", "text"), BLOCKS, ids=[f"{page}: {text[:40]!r}" for page, text in BLOCKS])
def test_a_spec_of_a_page_is_right(page, text, tmp_path):
    other = next((what for words, what in OTHERS.items() if text.strip().startswith(words)), None)
    if other == "shards":
        jsonschema = pytest.importorskip("jsonschema")
        schema = subprocess.run([BINARY, "schema", "shards"], capture_output=True, text=True, check=True).stdout
        jsonschema.validate(json.loads(text), json.loads(schema))
    if other:
        return
    part = json.loads(text if text.lstrip().startswith("{") else "{" + text + "}")
    if "name" in part:
        whole = part
    elif OF_PROGRAMS.match(page):
        part.pop("statistics", None)  # a sweep gives each run a folder
        whole = {"name": "program", "command": ["train"], **part}
    else:
        part = {"network": {"classes": part}} if "dp_gradient" in part else part
        whole = merged(merged(WHOLE, NEEDED.get(page, {})), part)
    ran = validate(whole, tmp_path)
    error = next((error for (place, word), error in MISSING.items() if place == page and word in text), None)
    if error:
        assert error in ran.stderr and ran.stderr.count("droptest: error:") == 1, ran.stderr
    else:
        assert ran.returncode == 0, ran.stderr
