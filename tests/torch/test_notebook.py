# SPDX-License-Identifier: Apache-2.0
"""The notebook in examples/torch: its cells run in order, and its first cell is the README's section on PyTorch."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
from matplotlib.figure import Figure

import droptest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "torch"
NOTEBOOK = json.loads((EXAMPLES / "tolerance.ipynb").read_text(encoding="utf-8"))
STEPS, SEEDS, RATES = 8, 2, [0, "5%", "50%"]
PNG = b"\x89PNG\r\n"


def source(cell):
    return "".join(cell["source"])


def code_cells():
    return [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def shown_by(cell, names):
    """Runs the cell as Jupyter does. Returns the value of its last line if that is an expression, else None."""
    body = ast.parse(source(cell)).body
    last = ast.Expression(body.pop().value) if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return None if last is None else eval(compile(last, "cell", "eval"), names)


def test_the_first_cell_is_the_readmes_section():
    section = re.search(r"^## Your own PyTorch code\n.*?(?=^## )", (ROOT / "README.md").read_text(), re.S | re.M)[0]
    section = section.strip().replace("](docs/", "](../../docs/").replace("](examples/torch/", "](")
    assert NOTEBOOK["cells"][0]["cell_type"] == "markdown"
    assert source(NOTEBOOK["cells"][0]) == section


def test_the_file_is_a_notebook_without_outputs():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert set(NOTEBOOK) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert NOTEBOOK["metadata"]["kernelspec"] == {"display_name": "Python 3", "language": "python", "name": "python3"}
    identifiers = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(set(identifiers)) == len(identifiers)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", identifier) for identifier in identifiers)
    members = {"cell_type", "id", "metadata", "source"}
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            assert set(cell) == members | {"execution_count", "outputs"}
            assert cell["execution_count"] is None and cell["outputs"] == []
        else:
            assert cell["cell_type"] == "markdown" and set(cell) == members
        assert isinstance(cell["metadata"], dict)
        assert all(isinstance(line, str) and line.endswith("\n") for line in cell["source"][:-1])


def test_links_of_the_notebook_lead_to_files():
    links = [link for cell in NOTEBOOK["cells"] for link in re.findall(r"\]\(([^)#]+)", source(cell))]
    assert len(links) > 10
    assert [link for link in links if not (EXAMPLES / link).is_file()] == []


def test_the_cells_lead_to_a_tolerance_curve(tmp_path, monkeypatch):
    for file in EXAMPLES.glob("*.py"):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "analysis"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    names, shown = {"__name__": "__main__"}, []
    for cell in code_cells():
        shown.append(shown_by(cell, names))
        if "parameters" in cell["metadata"].get("tags", []):
            names |= {"steps": STEPS, "seeds": SEEDS, "rates": RATES}
            if int(torch.__version__.split(".")[0]) < 2:  # whose own launcher fails on Python 3.11
                names["launcher"] = [sys.executable, str(Path(__file__).with_name("two_ranks.py"))]
    check_runs_by_hand(names["by_hand"])
    check_sweep(names["records"])
    check_shown(shown, names)


def check_runs_by_hand(records):
    runs = records.runs.set_index("run_id")
    assert dict(runs["status"]) == {"lossy_1": "completed", "lossless_1": "completed"}
    assert runs.loc["lossy_1", "twin"] == "lossless_1"
    lost = records.loss_statistics.query("half == 'both'").set_index("run_id")["lost"]
    assert lost["lossy_1"] > 0 == lost["lossless_1"]


def check_sweep(records):
    runs = records.runs
    assert records.unit == "nats per byte" and set(runs["status"]) == {"completed"}, list(runs["error"])
    points = droptest.points(records)
    assert list(points["loss_rate"]) == [0.0, 0.05, 0.5]
    assert list(points["completed"]) == [SEEDS] * len(RATES) and points["lossless"].sum() == 1
    lossless = set(runs.loc[runs["loss_rate"] == 0, "run_id"])
    lossy = runs[runs["loss_rate"] > 0]
    assert len(lossless) == SEEDS and set(lossy["twin"]) == lossless
    assert (lossy["difference"] != 0).all()


def check_shown(shown, names):
    """Jupyter shows each value as text or a table, and each figure as a picture."""
    figures = [value for value in shown if isinstance(value, Figure)]
    assert len(figures) == 3
    for value in shown:
        if isinstance(value, Figure):
            picture, size = value._repr_png_()
            assert picture.startswith(PNG) and 300 < size["width"] < 1000
        elif value is not None:
            assert value._repr_html_()
    curve = figures[0].axes[-1]  # the panel with all points
    assert any(list(line.get_xdata()) == [5, 50] for line in curve.lines)
    assert set(names["tolerance"]["loss_rate"]) == {0.05, 0.5} and names["tolerance"]["mean"].notna().all()
