# SPDX-License-Identifier: Apache-2.0
"""The NCCL layer has the functions that the installed PyTorch and NCCL know: a name that is missing would end a program
when it loads PyTorch, and one that is passed by would lose nothing."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BINARY

LAYER = BINARY.parents[1] / "api/nccl/libdroptest_nccl.so"
NOT_OF_A_HEADER = {"ncclResetDebugInitInternal"}


def names(file, kind):
    """NCCL's functions that a library defines or wants."""
    done = subprocess.run(["nm", "-D", f"--{kind}-only", file], capture_output=True, text=True, check=True)
    found = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}
    return {name for name in found if name.startswith("nccl")} - NOT_OF_A_HEADER


@pytest.fixture(scope="module")
def of_layer():
    if shutil.which("nm") is None:
        pytest.skip("no nm, of the package binutils")
    if not LAYER.is_file():
        pytest.skip(f"no {LAYER}: the build has no CUDA, or no NCCL")
    return names(LAYER, "defined")


def site_file(package, path):
    """The file of an installed Python package at this path in or beside its folder. None if there is no such file."""
    found = importlib.util.find_spec(package)
    places = [] if found is None else [Path(place) / path for place in found.submodule_search_locations]
    return next((place for place in places if place.is_file()), None)


def test_the_layer_has_every_function_that_pytorchs_own_library_wants(of_layer):
    library = site_file("torch", "lib/libtorch_cuda.so")
    if library is None:
        pytest.skip("this PyTorch has no library for CUDA")
    wanted = names(library, "undefined")
    if not wanted:
        pytest.skip("this PyTorch has NCCL linked into its own library")
    assert wanted <= of_layer, wanted - of_layer


def test_the_layer_has_every_function_of_the_installed_nccl(of_layer):
    library = site_file("torch", "../nvidia/nccl/lib/libnccl.so.2")
    if library is None:
        pytest.skip("no package of NCCL is installed beside PyTorch")
    assert names(library, "defined") <= of_layer, "api/nccl/nccl_names.json has an older version's functions"


BY_PATH_AND_THEN_BY_NAME = """
import ctypes, sys


class Place(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("others", ctypes.c_void_p * 3)]


ctypes.CDLL(sys.argv[1])
function = ctypes.cast(ctypes.CDLL("libnccl.so.2").ncclAllReduce, ctypes.c_void_p)
place = Place()
assert ctypes.CDLL(None).dladdr(function, ctypes.byref(place))
print(place.file.decode())
"""


def test_a_program_that_opens_nccl_by_path_and_then_by_name_gets_the_layer(of_layer):
    """JAX does both, in this order (docs/jax.md)."""
    library = site_file("torch", "../nvidia/nccl/lib/libnccl.so.2")
    if library is None:
        pytest.skip("no package of NCCL is installed beside PyTorch")
    done = subprocess.run([sys.executable, "-c", BY_PATH_AND_THEN_BY_NAME, library], capture_output=True, text=True,
                          env=os.environ | {"LD_PRELOAD": str(LAYER)}, check=False)  # fmt: skip
    assert done.stdout.strip() == str(LAYER), done.stderr
