# SPDX-License-Identifier: Apache-2.0
"""The version of droptest, and those of its files, are the same wherever they are named."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = re.search(r"project\(droptest VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def text_of(path):
    return (ROOT / path).read_text()


def test_the_citation_the_package_and_the_changelog_have_the_version_of_the_build():
    assert re.search(r"^version: (\S+)$", text_of("CITATION.cff"), re.MULTILINE)[1] == VERSION
    package = text_of("pyproject.toml")
    pattern = re.search(r"^regex = '(.*)'$", package, re.MULTILINE)[1]
    assert 'dynamic = ["version"]' in package and re.search(pattern, text_of("CMakeLists.txt"))["value"] == VERSION
    released = re.findall(r"^## ([0-9.]+) - (\d{4}-\d\d-\d\d)$", text_of("CHANGELOG.md"), re.MULTILINE)
    assert released[0][0] == VERSION
    assert re.search(r"^date-released: \"(.*)\"$", text_of("CITATION.cff"), re.MULTILINE)[1] == released[0][1]


def test_the_citation_has_the_members_that_its_format_wants():
    citation = text_of("CITATION.cff")
    for member in ("cff-version: 1.2.0", "message:", "title:", "authors:", "license: Apache-2.0"):
        assert re.search(f"^{re.escape(member)}", citation, re.MULTILINE), member
    assert "Apache License" in text_of("LICENSE")


ROWS = {
    "numerics": ("experiments/spec/numerics_version.h", r"kNewestNumerics = (\d+);"),
    "checkpoint": ("experiments/files/manifest.h", r"kCheckpointVersion = (\d+);"),
    "`summary.json`": ("analysis/droptest/files.py", r"SCHEMA_VERSION = (\d+)"),
    "saved state": ("api/rank_state.cc", r"kVersion = (\d+);"),
    "statistics of a rank": ("api/rank_statistics.cc", r"kSchemaVersion = (\d+);"),
    "`slurm/": ("experiments/slurm/array_record.cc", r"kArrayVersion = (\d+);"),
    "kernels": ("models/droptest_kernels.h", r"DROPTEST_KERNELS_ABI_VERSION (\d+)U"),
    "C interface": ("analysis/droptest/library.py", r'VERSION = "([0-9.]+)"'),
    "token file": ("experiments/data/token_source.cc", r"kLlmcVersion = (\d+);"),
    "program": ("CMakeLists.txt", r"project\(droptest VERSION ([0-9.]+)"),
}


def test_the_package_reads_the_counts_of_ranks_that_the_library_writes():
    pattern = r"(?:kSchemaVersion|SCHEMA_VERSION) = (\d+)"
    files = ("api/rank_statistics.cc", "analysis/droptest/rank_counts.py")
    written, read = (re.search(pattern, text_of(file))[1] for file in files)
    assert read == written


@pytest.mark.parametrize("row", ROWS)
def test_the_page_of_versions_has_the_number_of_the_code(row):
    file, pattern = ROWS[row]
    in_code = re.search(pattern, text_of(file))[1]
    (stated,) = re.findall(rf"^\| {re.escape(row)}[^|]* \| (\S+) \|", text_of("docs/record_versions.md"), re.MULTILINE)
    assert stated == in_code


def test_the_page_of_versions_has_each_schema_with_a_version():
    page = text_of("docs/record_versions.md")
    for schema in (ROOT / "experiments/schema").glob("*.schema.json"):
        found = re.search(r'"schema_version": \{[^}]*"const": (\d+)', schema.read_text())
        name = schema.name.removesuffix(".schema.json")
        listed = {"checkpoint": "checkpoint: manifest", "shards": "manifest of shards", "slurm_array": "array.json",
                  "slurm_task": "tasks.jsonl"}.get(name, f"{name}.json")  # fmt: skip
        if found:
            assert listed in page, f"{schema.name} has version {found[1]}"


def test_the_container_runs_the_two_commands_of_the_readme():
    commands = re.search(r"## Two commands.*?```\n(.*?)```", text_of("README.md"), re.DOTALL)[1]
    programs = re.findall(r"^(\./scripts/\S+)", commands, re.MULTILINE)
    recipe = text_of("Containerfile")
    assert re.findall(r'^CMD \["(\S+)"\]$', recipe, re.MULTILINE) == programs[::-1]
    assert re.findall(r"^FROM (\S+) AS (\S+)$", recipe, re.MULTILINE) == [
        ("debian:12", "tree"), ("tree", "test"), ("tree", "quickstart")]  # fmt: skip
    for script in set(re.findall(r"\./(scripts/\S+)", recipe.replace('"', " "))):
        assert (ROOT / script).is_file(), script
    ignored = text_of(".dockerignore").splitlines()
    assert {"build", "results", "corpus", ".cache"} <= set(ignored) and ".git" not in ignored
