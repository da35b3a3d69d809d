# SPDX-License-Identifier: Apache-2.0
"""The package as pip installs it, with and without its compiled library, and where `droptest report` finds it."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from synthetic import NONE, PACKAGES, ROOT, write_quickstart, write_sweep

import droptest

BINARY = os.environ.get("DROPTEST_BINARY", str(ROOT / "build/dev/experiments/droptest"))
OF_CMAKE = re.search(r"project\(droptest VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def environment(**changes):
    # Tests in the same process may have named the library of the build.
    theirs = ("PYTHONPATH", "DROPTEST_HOME", "DROPTEST_LIBRARY", "DROPTEST_PYTHON")
    return {k: v for k, v in os.environ.items() if k not in theirs} | changes


def call(*words, cwd, **changes):
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment(**changes), capture_output=True, text=True, check=False
    )


PACKAGES_OF_TESTS = ROOT / ".cache" / "python"  # by scripts/install-dependencies
WITHOUT_LIBRARY = ("--config-settings=wheel.cmake=false",)


def installed(folder, *how, **variables):
    """A Python that has the package by `pip install`, with Debian's packages and without the network."""
    if not (PACKAGES_OF_TESTS / "scikit_build_core").is_dir():
        pytest.skip(f"no scikit-build-core in {PACKAGES_OF_TESTS}: scripts/install-dependencies test")
    venv.create(folder, system_site_packages=True, symlinks=True)
    python = folder / "bin" / "python"
    done = call(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", *how, cwd=folder,
                PIP_DISABLE_PIP_VERSION_CHECK="1", PYTHONPATH=str(PACKAGES_OF_TESTS), **variables)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return python


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return installed(tmp_path_factory.mktemp("venv"), ROOT, *WITHOUT_LIBRARY)


WHERE = "import droptest; print(droptest.__file__); print(droptest.__version__)"


def test_the_version_is_that_of_cmake():
    assert droptest.__version__ == OF_CMAKE


def test_pip_installs_the_package_from_the_root(python, tmp_path):
    done = call(python, "-c", WHERE, cwd=tmp_path)
    file, version = done.stdout.splitlines()
    assert file.startswith(str(python.parents[1])) and version == OF_CMAKE
    folder = write_quickstart(tmp_path)
    done = call(python, "-m", "droptest", "table", folder, cwd=tmp_path)
    assert done.returncode == 0 and "Gilbert-Elliott, burst 8" in done.stdout


def test_pip_installs_a_command_that_reports_and_calls_the_compiled_program_for_the_rest(python, tmp_path):
    command = python.parent / "droptest"
    done = call(command, "--version", cwd=tmp_path)
    assert done.stdout.split() == [OF_CMAKE], done.stderr
    folder = write_sweep(tmp_path, {"/network/loss": [NONE]}, seeds=1)
    done = call(command, "report", folder, cwd=tmp_path)
    assert done.returncode == 0 and (folder / "report.html").is_file(), done.stderr
    done = call(command, "table", "nothing", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("droptest: error: nothing: no such folder")
    assert "usage: droptest [-h]" in call(command, "--help", cwd=tmp_path).stdout
    path = os.pathsep.join(map(str, (python.parent, "/usr/bin", "/bin")))
    unset = {"DROPTEST_BINARY": "", "PATH": path}
    done = call(command, "list", cwd=tmp_path, **unset)
    assert done.returncode == 2 and "PATH has no compiled droptest" in done.stderr
    program = tmp_path / "compiled"
    program.write_text('#!/bin/sh\necho "compiled $@"; exit 7\n')
    program.chmod(0o755)
    done = call(command, "list", "losses", cwd=tmp_path, **unset | {"DROPTEST_BINARY": str(program)})
    assert (done.returncode, done.stdout) == (7, "compiled list losses\n")
    # A shim, as version managers have them, that leads back to the command.
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "droptest").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (shims / "droptest").chmod(0o755)
    done = call(command, "list", cwd=tmp_path, DROPTEST_BINARY="", PATH=f"{shims}{os.pathsep}{path}")
    assert done.returncode == 2 and f"{shims}/droptest calls this command of the Python package again" in done.stderr


def test_an_editable_installation_uses_the_files_where_they_are(tmp_path):
    done = call(installed(tmp_path / "venv", "--editable", ROOT, *WITHOUT_LIBRARY), "-c", WHERE, cwd=tmp_path)
    assert done.stdout.splitlines() == [str(PACKAGES / "droptest/__init__.py"), OF_CMAKE]


def how_the_library_is_made():
    """Arguments of pip and variables with which the package takes the library of the build that is there. With
    DROPTEST_COMPILE_PACKAGE=1, and where there is no such build, pip compiles it."""
    built = Path(BINARY).parents[1] / "api/libdroptest.so.0.1"
    if os.environ.get("DROPTEST_COMPILE_PACKAGE") != "1" and built.is_file():
        # Without a search for CUDA's compiler, since nothing is compiled.
        defined = {"DROPTEST_PREBUILT_C_INTERFACE": built, "DROPTEST_WITH_CUDA": "OFF"}
        return [f"--config-settings=cmake.define.{name}={value}" for name, value in defined.items()], {}
    # As the preset dev compiles, so that a compiler cache has most of it.
    defined = {"CMAKE_CXX_FLAGS_RELWITHDEBINFO": "-O2 -g1 -DNDEBUG", "CMAKE_CUDA_ARCHITECTURES": "80"}
    return ["--config-settings=cmake.build-type=RelWithDebInfo",
            *(f"--config-settings=cmake.define.{name}={value}" for name, value in defined.items())], {
        "CCACHE_NOHASHDIR": "1"}  # fmt: skip


def test_pip_builds_the_library_into_the_package(tmp_path):
    arguments, variables = how_the_library_is_made()
    python = installed(tmp_path / "venv", ROOT, *arguments, **variables)
    program = "import droptest; from droptest import library; print(library.path())\n" \
              "network = droptest.Network({'network': {'loss': {'model': 'none'}}})\n" \
              "print(network.flow('dp_gradient').fates(0, 2))"  # fmt: skip
    done = call(python, "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    file, fates = done.stdout.splitlines()
    assert file.startswith(str(tmp_path / "venv")) and file.endswith("/droptest/lib/libdroptest.so.0.1")
    assert fates == "[False False]"


def test_an_installation_without_the_library_says_where_it_could_be(python, tmp_path):
    program = "import droptest; print(droptest.Records.__name__); droptest.Network({'network': {}})"
    done = call(python, "-c", program, cwd=tmp_path)
    assert done.stdout == "Records\n"
    assert "libdroptest.so.0.1" in done.stderr and "DROPTEST_LIBRARY names another place" in done.stderr


def test_an_installation_leaves_nothing_in_the_source_tree(python):
    done = call("git", "status", "--porcelain", "--ignored=matching", "--untracked-files=all", cwd=ROOT)
    assert not [line for line in done.stdout.splitlines() if "egg-info" in line or line.endswith(" dist/")]


@pytest.mark.skipif(not os.path.exists(BINARY), reason=f"no {BINARY}: set DROPTEST_BINARY")
def test_report_uses_the_installed_package_where_there_is_no_source_tree(python, tmp_path):
    folder = write_sweep(tmp_path, {"/network/loss": [NONE]}, seeds=1)
    home = tmp_path / "moved"
    done = call(BINARY, "report", folder, cwd=tmp_path, DROPTEST_HOME=str(home), DROPTEST_PYTHON=str(python))
    assert done.returncode == 0, done.stderr
    assert (folder / "report.html").is_file()
    done = call(BINARY, "report", folder, cwd=tmp_path, DROPTEST_HOME=str(home), DROPTEST_PYTHON=sys.executable)
    assert done.returncode == 2
    assert f"{home} has no analysis/droptest" in done.stderr and "pip install ." in done.stderr
