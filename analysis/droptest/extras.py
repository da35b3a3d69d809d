# SPDX-License-Identifier: Apache-2.0
"""The packages that only parts of droptest need, by the extra of pyproject.toml that installs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

REPORT = ("pandas", "scipy", "matplotlib", "jinja2", "plotly")
EXTRA_OF = {name: "report" for name in REPORT} | {"torch": "torch"}


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Imports inside of it that lack a package say which extra has it. Raises: ModuleNotFoundError."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        text = f"{what} needs {package}, which is not installed: {how_to_install(EXTRA_OF[package])}"
        raise ModuleNotFoundError(text, name=error.name) from None


def how_to_install(extra: str) -> str:
    """For errors."""
    return f"install the extra droptest[{extra}], in a clone of the repository by pip install '.[{extra}]'"
