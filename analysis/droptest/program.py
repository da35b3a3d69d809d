# SPDX-License-Identifier: Apache-2.0
"""The compiled program droptest: where it is, and that it and the command that pip installs never call each other in a
circle."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

CALLS = "DROPTEST_CALLS_BY_PACKAGE"  # "PROCESS DEPTH": the process that became the program, and calls within calls
MOST_CALLS = 8  # A program that a user's script calls within a run is a few calls deep; a circle has no end.


class CommandError(RuntimeError):
    """The droptest command is not there, or refused its arguments; the message is the command's own."""


class NoProgram(CommandError):
    """There is no compiled program, and none was named."""


def binary() -> Path:
    """The compiled droptest command: DROPTEST_BINARY, else the first on PATH, else the newest in the build folders. The
    command that pip installs is none: it looks for this one itself.

    Raises: CommandError that names the places.
    """
    if named := os.environ.get("DROPTEST_BINARY"):
        if not os.access(named, os.X_OK) or not Path(named).is_file():
            raise CommandError(f"DROPTEST_BINARY: got {named}, want a program that can be run")
        if _is_of_pip(Path(named)):
            raise CommandError(
                f"DROPTEST_BINARY: got {named}, the command of the Python package, want the compiled one"
            )
        return Path(named)
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which("droptest", path=folder or os.curdir)
        if found and not _is_of_pip(Path(found)):
            return Path(found)
    build = Path(__file__).resolve().parents[2] / "build"
    built = [path for path in build.glob("*/experiments/droptest") if os.access(path, os.X_OK)]
    if not built:
        raise NoProgram(
            f"no droptest command: DROPTEST_BINARY is not set, PATH has no compiled droptest, and {build} has no "
            "*/experiments/droptest; build it in a clone of the repository (./scripts/install-dependencies && "
            "cmake --preset release && cmake --build --preset release), and set DROPTEST_BINARY or PATH"
        )
    return max(built, key=lambda path: path.stat().st_mtime)


def _is_of_pip(file: Path) -> bool:
    """Whether the file is the script that this process runs, under whatever name, or another of pip's."""
    if file.resolve() == Path(sys.argv[0]).resolve():
        return True
    try:
        with file.open("rb") as content:
            beginning = content.read(1000)
    except PermissionError:  # a script that cannot be read cannot be run
        return False
    return beginning.startswith(b"#!") and b"droptest.__main__" in beginning


def become(words: list[str]) -> None:
    """Runs the compiled program with these words in place of this process. Returns only by an exception.

    A script that is not pip's can lead back here, in the same process or in one of its own. Raises: CommandError.
    """
    program = binary()
    process, _, depth = os.environ.get(CALLS, "").partition(" ")
    calls = int(depth) if depth.isdecimal() else 0
    if process == str(os.getpid()) or calls >= MOST_CALLS:
        raise CommandError(f"{program} calls this command of the Python package again; set DROPTEST_BINARY")
    os.environ[CALLS] = f"{os.getpid()} {calls + 1}"
    os.execv(program, [str(program), *words])
