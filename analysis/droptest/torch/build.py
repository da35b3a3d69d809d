# SPDX-License-Identifier: Apache-2.0
"""Builds the backend "droptest" for the PyTorch that is imported: `python -m droptest.torch.build`.

PyTorch has no stable interface for backends, so each version needs a build of its own. It takes about a minute, and
stays in PyTorch's folder of extensions (TORCH_EXTENSIONS_DIR, else ~/.cache/torch_extensions) under the versions of
PyTorch and of the sources. The first use of the backend builds it, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from droptest import library
from droptest.torch import forwarding

OLDEST = (2, 6)
NAME = "droptest_torch_backend"
_SOURCES = Path(__file__).resolve().parent / "backend"


class BuildError(RuntimeError):
    """The backend cannot be built; the message says what is missing."""


@cache
def extension() -> ModuleType:
    """The compiled module; built where this version is not there yet. Ranks that build at once wait for each other.
    Raises: BuildError."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST:
        raise BuildError(f"backend droptest: got torch {torch.__version__}, want 2.6 or later; "
                         "droptest.torch.ddp_hook and droptest.torch.lossy need none")  # fmt: skip
    header = forwarding.backend_header().read_text()
    source = (_SOURCES / "lossy_backend.cc").read_text()
    generated = {
        "forwarded.inc": forwarding.forwarded(header, source, torch.__version__),
        "by_device.inc": forwarding.by_device(header, torch.__version__),
    }
    file = Path(library.path()).resolve()
    folder = _folder(generated, file)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        built = folder / f"{NAME}.so"
        if not built.is_file():
            module = _compile(folder / "build", generated, file)
            made = folder / f"{NAME}.so.new"
            shutil.copy(module.__file__, made)
            made.replace(built)
            return module
    return _imported(built)


def _folder(generated: dict[str, str], file: Path) -> Path:
    content = hashlib.sha256("".join(generated.values()).encode() + str(file).encode() + _c_header(file).read_bytes())
    for source in sorted(_SOURCES.glob("*.[ch]*")):
        content.update(source.read_bytes())
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache/torch_extensions"
    return Path(root) / f"{NAME}_{python}_torch{torch.__version__}_{content.hexdigest()[:16]}"


def _c_header(file: Path) -> Path:
    """The path of droptest.h: in the installed Python package, or in the source tree."""
    places = [file.parent / "droptest.h", Path(__file__).resolve().parents[3] / "api/droptest.h"]
    for place in places:
        if place.is_file():
            return place
    raise BuildError(f"droptest.h: want it in one of {', '.join(str(place.parent) for place in places)}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time. The system frees this lock when its process ends; PyTorch's own file stays behind a killed
    build, and all later ones would wait for it."""
    with (folder / "droptest.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (folder / "build/lock").unlink(missing_ok=True)
        yield


def _compile(folder: Path, generated: dict[str, str], file: Path) -> ModuleType:
    """The module, which PyTorch imports once it is built."""
    from torch.utils import cpp_extension

    folder.mkdir(exist_ok=True)
    for name, text in generated.items():
        (folder / name).write_text(text)
    try:
        return cpp_extension.load(
            NAME,
            [str(_SOURCES / "lossy_backend.cc")],
            extra_cflags=["-O2"],
            extra_ldflags=[str(file), f"-Wl,-rpath,{file.parent}"],
            extra_include_paths=[str(folder), str(_c_header(file).parent), str(_SOURCES)],
            build_directory=str(folder),
            with_cuda=False,
        )
    except (RuntimeError, OSError) as error:
        raise BuildError(f"backend droptest for torch {torch.__version__}: {_failure(str(error))}") from error


def _failure(text: str) -> str:
    """What failed, from the text of the error, which has the messages of the compiler."""
    first = re.search(r"(?:fatal )?error: ([^\n]*)", text)
    function = forwarding.does_not_fit(text)
    if function is not None:
        return (f"{function} has a declaration that droptest's generated code does not fit: "
                f"{first[1] if first else text}\n{text}")  # fmt: skip
    if (place := re.search(r"^(\S+?):(\d+):\d+: (?:fatal )?error: ([^\n]*)", text, re.MULTILINE)) is not None:
        return f"the compiler refuses {Path(place[1]).name}, line {place[2]}: {place[3]}\n{text}"
    return f"{text}; it needs a C++17 compiler and ninja; `python -m droptest.torch.build` builds it alone"


def _imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    print(f"torch {torch.__version__}: {extension().__file__}")


if __name__ == "__main__":
    main()
