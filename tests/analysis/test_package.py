# SPDX-License-Identifier: Apache-2.0
"""The package as pip installs it, with and without its compiled library, and where `droptest report` finds it."""

import ast
import importlib
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from synthetic import NONE, PACKAGES, ROOT, write_quickstart, write_sweep

import droptest
from droptest import extras

BINARY = os.environ.get("DROPTEST_BINARY", str(ROOT / "build/dev/experiments/droptest"))
OF_CMAKE = re.search(r"project\(droptest VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def environment(**changes):
    # Tests in the same process may have named the library of the build.
    theirs = ("PYTHONPATH", "DROPTEST_HOME", "DROPTEST_LIBRARY", "DROPTEST_PYTHON")
    return {k: v for k, v in os.environ.items() if k not in theirs} | changes


BUILT = Path(BINARY).parents[1] / "api/libdroptest.so.0.1"
with_library = pytest.mark.skipif(not BUILT.is_file(), reason=f"no {BUILT}: set DROPTEST_BINARY")


def call(*words, cwd, **changes):
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment(**changes), capture_output=True, text=True, check=False
    )


PACKAGES_OF_TESTS = ROOT / ".cache" / "python"  # by scripts/install-dependencies
CHECKER = ROOT / ".cache" / "mypy"  # likewise
COMPILES = os.environ.get("DROPTEST_COMPILE_PACKAGE") == "1"
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
    (shims / "droptest").touch(mode=0o755)
    for how in ("exec ", ""):  # in the same process, or in one of its own
        (shims / "droptest").write_text(f'#!/bin/sh\n{how}{command} "$@"\n')
        done = call(command, "list", cwd=tmp_path, DROPTEST_BINARY="", PATH=f"{shims}{os.pathsep}{path}")
        assert done.returncode == 2
        again = f"{shims}/droptest calls this command of the Python package again; set DROPTEST_BINARY"
        assert done.stderr.count(again) == 1


def test_a_command_finds_itself_by_its_real_path(python, tmp_path):
    """A script that starts the command under another module's name is not seen by its text."""
    own = tmp_path / "own/droptest"
    own.parent.mkdir()
    own.write_text(f"#!{python}\nfrom importlib import import_module\nimport sys\n"
                   "sys.exit(import_module('droptest' + '.__main__').command())\n")  # fmt: skip
    own.chmod(0o755)
    link = tmp_path / "links/droptest"
    link.parent.mkdir()
    link.symlink_to(own)
    path = os.pathsep.join(map(str, (own.parent, link.parent, "/usr/bin", "/bin")))
    for script in (own, link):
        done = call(script, "list", cwd=tmp_path, DROPTEST_BINARY="", PATH=path)
        assert done.returncode == 2 and "PATH has no compiled droptest" in done.stderr
        done = call(script, "list", cwd=tmp_path, DROPTEST_BINARY=str(link), PATH=path)
        assert f"DROPTEST_BINARY: got {link}, the command of the Python package" in done.stderr


def test_a_program_within_a_run_may_call_the_command_again(python, tmp_path):
    """As a script does that a run of the compiled program starts."""
    program = tmp_path / "compiled"
    inner = f"{python.parent}/droptest inner"
    program.write_text(f'#!/bin/sh\n[ "$1" = outer ] && {{ {inner}; exit; }}\necho "compiled $1"\n')
    program.chmod(0o755)
    done = call(python.parent / "droptest", "outer", cwd=tmp_path, DROPTEST_BINARY=str(program))
    assert (done.returncode, done.stdout) == (0, "compiled inner\n"), done.stderr


@with_library
def test_the_command_draws_fates_by_the_compiled_program_where_there_is_one_else_itself(python, tmp_path):
    command, path = python.parent / "droptest", os.pathsep.join(map(str, (python.parent, "/usr/bin", "/bin")))
    words = ["fates", "--loss", '{"model": "bernoulli", "loss_rate": 0.3}', "--class", "outer", "--count", "200"]
    program = tmp_path / "compiled"
    program.write_text('#!/bin/sh\necho "compiled $1"\n')
    program.chmod(0o755)
    library = {"DROPTEST_LIBRARY": str(BUILT), "PATH": path}
    done = call(command, *words, cwd=tmp_path, DROPTEST_BINARY=str(program), **library)
    assert done.stdout == "compiled fates\n"
    done = call(command, *words, cwd=tmp_path, DROPTEST_BINARY="", **library)
    assert done.returncode == 0 and done.stdout == call(BINARY, *words, cwd=tmp_path).stdout, done.stderr
    done = call(command, *words, "--message", "1", cwd=tmp_path, DROPTEST_BINARY="", **library)
    assert done.returncode == 2 and "--message: got 1, to which only the compiled program has an answer" in done.stderr


ABSENT = f"import sys\nfor name in {extras.REPORT}: sys.modules[name] = None\nimport droptest\n"


@with_library
def test_a_network_and_fates_need_numpy_only(tmp_path):
    program = ABSENT + "from droptest.__main__ import main\n" \
              "network = droptest.Network({'network': {'loss': {'model': 'bernoulli', 'loss_rate': 1}}})\n" \
              "print(network.flow('outer').fates(0, 2), network.statistics().classes == {}, dir(droptest)[0])\n" \
              "loss = ['--loss', '{\"model\": \"none\"}']\n" \
              "sys.exit(main(['fates', *loss, '--class', 'outer', '--count', '3', '--format', 'bits']))"  # fmt: skip
    done = call(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(PACKAGES), DROPTEST_LIBRARY=str(BUILT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[ True  True] True CollectiveGroup\n000\n# 0 of 3 packets lost")


def test_modules_that_need_numpy_only_load_nothing_else(tmp_path):
    program = f"import sys, droptest.network, droptest.link_fates, droptest.program\n" \
              f"print([name for name in {extras.REPORT} if name in sys.modules])"  # fmt: skip
    done = call(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(PACKAGES))
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("name", ["load", "points", "plots", "fates", "mean_interval"])
def test_a_name_whose_package_is_absent_says_which_extra_has_it(tmp_path, name):
    done = call(sys.executable, "-c", f"{ABSENT}droptest.{name}", cwd=tmp_path, PYTHONPATH=str(PACKAGES))
    package = "scipy" if name == "mean_interval" else "pandas"
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: droptest.{name} needs {package}, which is not installed: install the extra "
        "droptest[report], in a clone of the repository by pip install '.[report]'"
    )


@with_library
def test_links_of_statistics_say_which_extra_they_need(tmp_path):
    program = ABSENT + "droptest.Network({'network': {'loss': {'model': 'none'}}}).statistics().links"
    done = call(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(PACKAGES), DROPTEST_LIBRARY=str(BUILT))
    assert "Statistics.links needs pandas, which is not installed: install the extra droptest[report]" in done.stderr


def test_hooks_say_which_extra_has_pytorch(tmp_path):
    program = "import sys; sys.modules['torch'] = None; import droptest.torch"
    done = call(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(PACKAGES))
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: droptest.torch needs torch, which is not "
                                                   "installed: install the extra droptest[torch]")  # fmt: skip


def test_an_error_of_another_module_stays_as_it_is():
    with pytest.raises(ModuleNotFoundError, match="No module named 'nothing_of_this_name'"), extras.needed_by("all"):
        importlib.import_module("nothing_of_this_name")


def test_the_command_says_which_packages_a_report_needs(tmp_path):
    program = "import importlib.util, sys\nfrom droptest import __main__\n" \
              "__main__.find_spec = lambda name: None if name == 'plotly' else importlib.util.find_spec(name)\n" \
              "sys.exit(__main__.main(['report', 'results']))"  # fmt: skip
    done = call(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(PACKAGES))
    assert done.returncode == 2 and "has no plotly; install the extra droptest[report]" in done.stderr


def test_the_metadata_of_the_wheel_has_the_extras_the_command_and_the_types(python, tmp_path):
    program = "from importlib.metadata import distribution\nfound = distribution('droptest')\n" \
              "print(sorted(found.requires))\nprint([(e.name, e.value) for e in found.entry_points])\n" \
              "print(sorted(f.name for f in found.files if f.suffix in ('.pyi', '.typed')))\n" \
              "print(found.metadata['License-Expression'])"  # fmt: skip
    requires, commands, types, licence = call(python, "-c", program, cwd=tmp_path).stdout.splitlines()
    wanted = [re.split("[>;]", text)[0] + "; extra" * ("extra" in text) for text in ast.literal_eval(requires)]
    of_report = sorted(f"{name}; extra" for name in (*extras.REPORT, "torch"))
    assert sorted(wanted) == sorted(["numpy", *of_report])
    for extra in set(extras.EXTRA_OF.values()):
        named = {
            re.split("[>;]", text)[0] for text in ast.literal_eval(requires) if f"'{extra}'" in text.replace('"', "'")
        }
        assert named == {name for name, of in extras.EXTRA_OF.items() if of == extra}
    assert commands == "[('droptest', 'droptest.__main__:command')]"
    assert types == "['__init__.pyi', 'py.typed']" and licence == "Apache-2.0"


def test_the_names_for_type_checkers_are_those_that_are_loaded():
    stub = ast.parse((PACKAGES / "droptest/__init__.pyi").read_text())
    imported = {alias.asname: node.module for node in stub.body if isinstance(node, ast.ImportFrom)
                for alias in node.names if alias.asname == alias.name}  # fmt: skip
    assert imported | {"plots": "droptest.plots"} == droptest._MODULE_OF


def test_dir_has_the_names_for_users_only():
    assert {name for name in dir(droptest) if not re.fullmatch("__.*__", name)} == set(droptest._MODULE_OF)
    assert droptest.CollectiveGroup is importlib.import_module("droptest.network").CollectiveGroup


def test_a_name_for_users_is_one_class():
    defined = {}
    for file in (PACKAGES / "droptest").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and node.name in droptest._MODULE_OF:
                defined.setdefault(node.name, []).append(file.stem)
    assert defined and all(len(files) == 1 for files in defined.values()), defined


USE = """
from pathlib import Path
import numpy as np
import droptest
from droptest import plots

records: droptest.Records = droptest.load(Path("results/quickstart"))
records = droptest.run("spec.json", values={"/training/steps": 10})
records = droptest.sweep({"name": "mine"}, "results", jobs=2)
program: Path = droptest.binary()
lost: int = int(droptest.fates({"model": "bernoulli", "loss_rate": 0.1}, 1000, seed=7).sum())
rows: int = len(droptest.points(records))
found: droptest.Comparison = droptest.compare(records, "lossless", ("Bernoulli", 0.05), margin=0.01)
print(found.mean + found.low, found.verdict.upper(), found.n + 1)
network = droptest.Network({"network": {"loss": {"model": "none"}}, "seed": 1}, rank=0, world_size=2)
flow: droptest.Flow = network.flow("dp_gradient", 0)
share: float = flow.lose(np.ones(1000, np.float32)).lost / flow.packets(1000)
group: droptest.CollectiveGroup = network.group("dp_gradient", [0, 1])
for line in droptest.watch("results/mine/0123456789abcdef", patience_seconds=5.0):
    print(line["step"])
classes: dict[str, object] = droptest.Statistics.read("results/mine").classes
plots.draw("final_loss", records).savefig("final_loss.png")
intervals: list[droptest.Interval] = [point.final for point in droptest.groups(records)]
version: str = droptest.__version__
"""
MISUSE = {
    "droptest.load(3)": "arg-type",
    "droptest.of_no_such_name": "attr-defined",
    'droptest.compare(droptest.load("x"), "a")': "call-arg",
    'droptest.Network({}).flow("outer", source="0")': "arg-type",
}


def test_mypy_accepts_a_script_with_the_most_used_calls_and_finds_mistakes(python, tmp_path):
    if not (CHECKER / "mypy").is_dir():
        pytest.skip(f"no mypy in {CHECKER}: scripts/install-dependencies test")
    (tmp_path / "use.py").write_text(USE)
    (tmp_path / "misuse.py").write_text("import droptest\n" + "".join(f"{line}\n" for line in MISUSE))
    words = ("-m", "mypy", "--strict", "--python-executable", python, "--cache-dir", tmp_path / "cache")
    done = call(sys.executable, *words, "use.py", cwd=tmp_path, PYTHONPATH=str(CHECKER))
    assert (done.returncode, done.stdout) == (0, "Success: no issues found in 1 source file\n"), done.stdout
    done = call(sys.executable, *words, "misuse.py", cwd=tmp_path, PYTHONPATH=str(CHECKER))
    found = re.findall(r"^misuse.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    assert found == [(str(line), kind) for line, kind in enumerate(MISUSE.values(), 2)], done.stdout


def test_an_editable_installation_uses_the_files_where_they_are(tmp_path):
    done = call(installed(tmp_path / "venv", "--editable", ROOT, *WITHOUT_LIBRARY), "-c", WHERE, cwd=tmp_path)
    assert done.stdout.splitlines() == [str(PACKAGES / "droptest/__init__.py"), OF_CMAKE]


def how_the_library_is_made():
    """Arguments of pip and variables with which the package takes the library of the build that is there. With
    DROPTEST_COMPILE_PACKAGE=1, and where there is no such build, pip compiles it."""
    if not COMPILES and BUILT.is_file():
        # Without a search for CUDA's compiler, since nothing is compiled.
        defined = {"DROPTEST_PREBUILT_C_INTERFACE": BUILT, "DROPTEST_WITH_CUDA": "OFF"}
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


def test_the_wheel_needs_nothing_of_the_system_but_glibc_and_libstdcxx(tmp_path):
    if not COMPILES:
        pytest.skip("builds the package, which scripts/test dev package does")
    if not (ROOT / ".cache/wheel/auditwheel").is_dir():
        pytest.skip(f"no auditwheel in {ROOT / '.cache/wheel'}: scripts/install-dependencies test")
    done = call(ROOT / "scripts/build-wheel", tmp_path / "wheels", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)  # the seconds
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert done.stdout.startswith(f"wheel:  {wheel} (")
    # Debian 12 has glibc 2.36; a library that needs less runs on more systems.
    (minor,) = re.fullmatch(
        rf"droptest-{re.escape(OF_CMAKE)}-py3-none-manylinux_2_(\d+)_x86_64\.whl", wheel.name
    ).groups()
    assert int(minor) <= 36
    python = installed(tmp_path / "venv", wheel)
    program = "import droptest; from droptest import library; print(library.path())\n" \
              "print(droptest.fates({'model': 'bernoulli', 'loss_rate': 1}, 2).tolist())"  # fmt: skip
    done = call(python, "-c", program, cwd=tmp_path, DROPTEST_BINARY="", PATH="/usr/bin:/bin")
    file, fates = done.stdout.splitlines()
    assert file.endswith("/droptest/lib/libdroptest.so.0.1") and fates == "[True, True]"
    assert not list(Path(file).parents[2].glob("droptest.libs"))
    needed = re.findall(r"NEEDED.*\[(.*)\]", call("readelf", "--dynamic", file, cwd=tmp_path).stdout)
    assert {name.split(".so")[0] for name in needed} <= {"libstdc++", "libm", "libgcc_s", "libc", "ld-linux-x86-64"}


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
