# SPDX-License-Identifier: Apache-2.0
"""Lists that the package has without the schemas and the header, which are not installed with it, are theirs."""

import json
import re
from pathlib import Path

import pytest

from droptest import (
    class_links,
    classification,
    files,
    library,
    link_losses,
    loss_model,
    records,
    run_rows,
    search,
    series,
    wall_time,
    words,
)

ROOT = Path(__file__).resolve().parents[2]
NETWORK = json.loads((ROOT / "comm/spec/network.schema.json").read_text())
SCHEMAS = {file.name: json.loads(file.read_text()) for file in (ROOT / "experiments/schema").glob("*.schema.json")}
for part in ("properties", "$defs"):  # a spec has the members and definitions of a network, too
    SCHEMAS["spec.schema.json"][part] |= NETWORK[part]
DEFINITIONS = NETWORK["$defs"]
HEADER = (ROOT / "api/droptest.h").read_text()


def enumerators_of(name):
    """The words of an enumeration of droptest.h, in order."""
    (body,) = re.findall(rf"typedef enum \{{([^}}]*)\}} {name};", HEADER)
    return tuple(word.lower().removesuffix("_error") for word in re.findall(r"^ *DROPTEST_(\w+)", body, re.MULTILINE))


def parts_of(schema, name):
    """The schema of a file and the alternatives and definitions that it stands for, each with its file."""
    yield schema, name
    if "$ref" in schema:
        file, pointer = schema["$ref"].split("#")
        target = SCHEMAS[file or name]
        for part in pointer.split("/")[1:]:
            target = target[part]
        yield from parts_of(target, file or name)
    for choice in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        yield from parts_of(choice, name)


def members_of(name, *path):
    """The names of the members at a path of a schema; "*": of each member of any name, or entry of a list."""
    found = [(SCHEMAS[f"{name}.schema.json"], f"{name}.schema.json")]
    for step in path:
        parts = [part for schema, file in found for part in parts_of(schema, file)]
        keys = ("additionalProperties", "items") if step == "*" else ("properties",)
        inner = [(part[key], file) for part, file in parts for key in keys if isinstance(part.get(key), dict)]
        found = inner if step == "*" else [(part[step], file) for part, file in inner if step in part]
        assert found, f"{name}: {path}: no {step}"
    return {member for s, f in found for part, _ in parts_of(s, f) for member in part.get("properties", ())}


def test_traffic_classes_are_those_of_the_schema_and_the_header():
    names = tuple(DEFINITIONS["traffic_class"]["enum"])
    assert library.CLASSES == ("control", *names) == enumerators_of("droptest_class")
    assert set(NETWORK["properties"]["network"]["properties"]["classes"]["properties"]) == set(names)
    assert set(class_links.GROUPS) == set(names)
    assert set(words.CLASSES) <= set(names)


@pytest.mark.parametrize(
    ("mine", "name"),
    [(library.HALVES, "droptest_half"), (library.TYPES, "droptest_type"), (library.REDUCTIONS, "droptest_reduction"),
     (library.STATUSES, "droptest_status")],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_numbered_names_are_those_of_the_header(mine, name):
    assert mine == enumerators_of(name)


def test_loss_models_with_words_of_their_own_are_those_of_the_schema():
    models = {form["properties"]["model"]["const"] for form in DEFINITIONS["loss_process"]["oneOf"]}
    assert {"none", "bernoulli", "gilbert_elliott", *loss_model.CHANGING} <= models


def test_conditions_of_links_are_those_of_the_schema():
    assert {*link_losses.CONDITIONS, "loss"} == set(DEFINITIONS["link_overrides"]["items"]["properties"])


def test_dimensions_are_those_of_the_schema():
    assert set(class_links.DIMENSIONS) <= members_of("spec", "parallel")


@pytest.mark.parametrize("pointer", series.KNOWN_POINTERS)
def test_pointers_with_words_are_of_the_spec(pointer):
    *parents, last = pointer.split("/")[1:]
    assert last in members_of("spec", *parents)


@pytest.mark.parametrize(
    ("columns", "path"),
    [
        (run_rows.METRIC_COLUMNS, ("metrics",)),
        (run_rows.COUNT_COLUMNS, ("loss_statistics", "classes", "*", "halves", "reduce")),
        ((*run_rows.COUNT_COLUMNS, *run_rows.CLASS_COLUMNS), ("loss_statistics", "classes", "*")),
        (run_rows.LINK_COLUMNS, ("loss_statistics", "links", "*")),
        (run_rows.LINK_ENDS, ("loss_statistics", "links", "*")),
        (run_rows.LAYER_COLUMNS, ("diagnostics", "classes", "*", "layers", "*")),
        (run_rows.TIME_COLUMNS, ("summary", "time")),
        (classification.MEASURES, ("summary", "classification")),
    ],
    ids=lambda value: "/".join(value) if "columns" not in value else "",
)
def test_columns_are_members_of_the_records(columns, path):
    assert set(columns) <= members_of(*path)


def test_recoveries_have_the_members_of_the_records():
    half = ("loss_statistics", "classes", "*", "halves", "reduce")
    assert set(run_rows.RECOVERY_COLUMNS) <= members_of(*half, "recovery") | members_of(*half)


def test_statuses_verdicts_and_marks_are_those_of_the_records():
    summary, rates = SCHEMAS["summary.schema.json"], SCHEMAS["search.schema.json"]["properties"]["rates"]
    assert set(files.FINISHED) == set(summary["properties"]["status"]["enum"])
    assert {*search.VERDICTS, "not_judged"} == set(rates["items"]["properties"]["verdict"]["enum"])
    marks = summary["$defs"]["warning"]["properties"]["mark"]["enum"]
    assert set(records.MARKED) == {mark.replace("_", " ") for mark in marks}


def test_phases_are_those_of_the_records():
    wall = SCHEMAS["metrics.schema.json"]["properties"]["ranks"]["items"]["properties"]["wall_seconds"]
    phases = wall["properties"]["phases"]["propertyNames"]["enum"]
    assert set(wall_time.COMPUTE) <= set(phases)
    assert {wall_time.part_of("phase", phase) for phase in phases} | {"waiting"} == set(wall_time.PARTS)
