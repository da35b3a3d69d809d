# SPDX-License-Identifier: Apache-2.0
"""The report in headless Chromium: drawn figures, sorted tables, overflows, and requests to a network."""

import html
import json
import re
import shutil
import subprocess

import pytest
import synthetic
from synthetic import NONE, bernoulli, gilbert_elliott

from droptest.__main__ import main

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: scripts/install-dependencies test installs it")
# Runs in the page before all else, and writes its findings into the page's last element.
PROBE = """<script>
const failures = [], asked = [];
addEventListener("error", event => failures.push(String(event.message)));
addEventListener("unhandledrejection", event => failures.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", event => asked.push(event.blockedURI));
addEventListener("load", () => setTimeout(() => {
  const root = document.documentElement, table = document.querySelector("table[data-name=summary]");
  const cells = (column) => [...table.tBodies[0].rows].map(row => row.cells[column].textContent);
  const heads = [...table.tHead.rows[0].cells].map(cell => cell.textContent);
  const column = heads.indexOf("final validation loss"), before = cells(column);
  table.tHead.rows[0].cells[column].click();
  const up = cells(column);
  table.tHead.rows[0].cells[column].click();
  const down = cells(column);
  const field = document.querySelector("#table-summary .filter input");
  let filtered = null;
  if (field) {
    field.value = "gilbert"; field.dispatchEvent(new Event("input"));
    filtered = [...table.tBodies[0].rows].filter(row => !row.hidden).map(row => row.cells[0].textContent);
    field.value = ""; field.dispatchEvent(new Event("input"));
  }
  const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, .drawing, pre")
    && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + " " + e.className);
  // Titles that leave their panel, and labels of ticks that run over each other.
  const inside = (e, box) => { const r = e.getBoundingClientRect();
    return r.left >= box.left - 1 && r.right <= box.right + 1 && r.top >= box.top - 1 && r.bottom <= box.bottom + 1; };
  const cut = [], touching = [];
  for (const panel of document.querySelectorAll(".drawing .panel")) {
    const box = panel.getBoundingClientRect();
    for (const e of panel.querySelectorAll(".gtitle, .xtitle, .ytitle, .xtick text, .ytick text"))
      if (e.textContent && !inside(e, box)) cut.push(e.textContent);
    for (const axis of [".xtick text", ".ytick text"]) {
      const labels = [...panel.querySelectorAll(axis)].filter(e => e.textContent);
      const boxes = labels.map(e => e.getBoundingClientRect());
      boxes.forEach((x, i) => boxes.slice(0, i).forEach((y, j) => {
        const over = [["left", "right"], ["top", "bottom"]].every(([from, to]) =>
          Math.min(x[to], y[to]) - Math.max(x[from], y[from]) > 1);
        if (over) touching.push([labels[i].textContent, labels[j].textContent]); }));
    }
  }
  const titles = document.querySelectorAll(".drawing .panel .xtitle").length;
  const sticky = [...document.querySelectorAll(".scroll td:first-child")]
    .every(e => getComputedStyle(e).position === "sticky");
  const figures = {};
  for (const place of document.querySelectorAll(".drawing"))
    figures[place.dataset.figure] = [...place.querySelectorAll(".panel")].map(panel => ({
      title: panel.layout.title.text, inside: panel.getBoundingClientRect().right <= innerWidth,
      shown: [...panel.querySelectorAll(".trace, .heatmaplayer image, .hm image")]
        .filter(e => e.checkVisibility() && e.getBoundingClientRect().width > 0).length,
      traces: panel.data.map(t => ({type: t.type, name: t.name, y: t.y || t.z, mode: t.mode}))}));
  const compared = {words: document.getElementById("compare-result").textContent,
    rows: [...document.querySelectorAll("#compare-spec tbody tr")].map(row => [...row.cells].map(c => c.textContent))};
  const seen = {failures, asked, cut, touching, titles, sticky, before, up, down, filtered, wide, figures, compared,
    scroll: root.scrollWidth,
    inner: innerWidth, failed: root.dataset.failed || null,
    fetched: performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("data:"))};
  const out = document.createElement("pre");
  out.id = "probe"; out.textContent = JSON.stringify(seen);
  document.body.append(out);
}, 3000));
</script>"""


def browse(profile, page, *arguments):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
               f"--user-data-dir={profile}", "--virtual-time-budget=60000", *arguments, page.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    losses = [NONE, *(bernoulli(rate) for rate in (0.01, 0.05, 0.2)), gilbert_elliott(0.05, 8), gilbert_elliott(0.2, 8)]
    folder = synthetic.write_sweep(tmp_path_factory.mktemp("browser"), {"/network/loss": losses}, seeds=3)
    assert main(["report", str(folder)]) == 0
    return folder


def probed(folder, profile, width, probe=PROBE):
    """The probe's findings in a folder's report, in a window of so many pixels."""
    page = folder / f"probe{width}.html"
    text = (folder / "report.html").read_text()
    page.write_text(text.replace("<style>", probe + "<style>", 1))
    dumped = browse(profile, page, f"--window-size={width},900", "--dump-dom")
    page.unlink()
    found = re.search(r'<pre id="probe">(.*?)</pre>', dumped, re.DOTALL)
    assert found, dumped[-2000:]
    return json.loads(html.unescape(found[1]))


@pytest.fixture(scope="module", params=[1300, 700])
def seen(request, folder, tmp_path_factory):
    return probed(folder, tmp_path_factory.mktemp("profile"), request.param)


def test_no_script_fails_and_nothing_is_asked_of_a_network(seen):
    assert (seen["failures"], seen["failed"], seen["asked"], seen["fetched"]) == ([], None, [], [])


def test_figures_are_drawn_with_the_numbers_of_their_files(seen, folder):
    import pandas as pd

    drawn = seen["figures"]
    assert {"tolerance", "final_loss", "training_curves", "differences", "divergence", "layers", "burst_lengths",
            "loss_rate_check", "compare"} <= set(drawn)  # fmt: skip
    for name, panels in drawn.items():
        for panel in panels:
            assert panel["shown"] > 0 and panel["inside"], f"{name}: {panel['title']}"
    around, whole = drawn["tolerance"]
    numbers = pd.read_csv(folder / "plots" / "tolerance.csv")
    for panel in (around, whole):
        means = {t["name"]: t["y"] for t in panel["traces"] if "lines" in t["mode"]}
        points = {
            t["name"]: t["y"] for t in reversed(panel["traces"]) if t["mode"] == "markers"
        }  # edge marks come last
        for series, rows in numbers.groupby("panel"):
            assert points[series] == pytest.approx(rows["difference"].tolist(), rel=1e-6)
            assert means[series] == pytest.approx(rows.drop_duplicates("loss_rate")["mean"].tolist(), rel=1e-6)
    differences = pd.read_csv(folder / "plots" / "differences.csv")
    assert len(drawn["differences"]) == differences["panel"].nunique() == 2
    curves = [t for panel in drawn["differences"] for t in panel["traces"] if t.get("name")]
    assert sum(len(t["y"]) for t in curves) == len(differences)


def halves_and_learning_rates(out):
    """Loss in either half, the best of two learning rates, and a search."""
    network = lambda reduce, gather: {"reduce": {"loss": reduce}, "gather": {"loss": gather}}  # noqa: E731
    losses = [network(NONE, NONE)]
    losses += [network(*pair) for r in (0.05, 0.2) for pair in ((bernoulli(r), NONE), (NONE, bernoulli(r)))]
    rates = {"/training/learning_rate": [0.001, 0.002], "/network": losses}
    folder = synthetic.write_sweep(out, rates, seeds=2, best_over=["/training/learning_rate"],
                                   selection_losses=lambda point, seed: point["/training/learning_rate"])  # fmt: skip
    of = {}
    for run in json.loads((folder / "sweep.json").read_text())["runs"]:
        key = (run["point"]["/training/learning_rate"], json.dumps(run["point"]["/network"]))
        of.setdefault(key, []).append((run["run_id"], run["seed"]))
    twins, low = of[0.001, json.dumps(losses[0])], of[0.001, json.dumps(losses[1])]
    synthetic.write_search(folder, {0.05: ("passes", 0.5, 0.1, 0.9, [(*run, 0.5) for run in low])}, twins)
    return folder


def crossed(out):
    return synthetic.write_sweep(out, {"/network/loss": [NONE, bernoulli(0.1)]}, repeat={"weights": 3, "network": 2})


def timed(out):
    time = {"link": {"latency_microseconds": 5.0, "bandwidth_gbit_per_second": 100.0}, "compute_milliseconds": 1.0}
    cross = {"/network/loss": [NONE, *map(bernoulli, (0.02, 0.05, 0.1))],
             "/time/retransmission": [{"protocol": "none"}, {"protocol": "selective_repeat"}]}  # fmt: skip
    return synthetic.write_sweep(out, cross, time=time, training={"steps": 300}, validation={"every_steps": 10})


@pytest.mark.parametrize(
    ("write", "wanted"),
    [(halves_and_learning_rates, {"threshold", "rate_map", "places", "final_loss"}), (crossed, {"variances"}),
     (timed, {"time_to_target", "loss_over_time", "step_time", "recoveries"})],
)  # fmt: skip
def test_every_other_figure_is_drawn_too(write, wanted, tmp_path):
    folder = write(tmp_path)
    assert main(["report", str(folder)]) == 0
    seen = probed(folder, tmp_path / "profile", 700)
    assert (seen["failures"], seen["failed"], seen["asked"], seen["wide"]) == ([], None, [], [])
    assert (seen["cut"], seen["touching"]) == ([], [])
    assert wanted <= set(seen["figures"])
    for name in wanted:
        for panel in seen["figures"][name]:
            assert panel["shown"] > 0 and panel["inside"] and panel["traces"], f"{name}: {panel['title']}"


TEXTS = """<script>
addEventListener("load", () => setTimeout(() => {
  const panel = document.querySelector("[data-figure=tolerance] .panel");
  Plotly.Fx.hover(panel, panel.data.map((_, curveNumber) => ({curveNumber, pointNumber: 0})));
  const texts = selector => [...document.querySelectorAll(selector)].map(e => e.textContent);
  const out = document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify({titles: texts("[data-figure=training_curves] .gtitle"), keys: texts(".key button"),
    hovers: texts(".hoverlayer .hovertext"), links: document.querySelectorAll(".drawing svg a").length});
  document.body.append(out);
}, 3000));
</script>"""


def test_tags_and_dollars_in_names_are_shown_as_they_are(tmp_path):
    names = ["a<br><b>& $c$</b>", '<a href="x">y</a>']
    folder = synthetic.write_sweep(
        tmp_path, {"/data/text": names, "/network/loss": [NONE, bernoulli(0.05), bernoulli(0.1)]}, seeds=1
    )
    assert main(["report", str(folder)]) == 0
    seen = probed(folder, tmp_path / "profile", 1300, TEXTS)
    shown = [f"text {name}, Bernoulli" for name in names]
    assert seen["titles"][:2] == shown and seen["links"] == 0
    assert all(any(name in text for text in seen["keys"]) for name in shown), seen["keys"]
    assert any(shown[0] in text for text in seen["hovers"]), seen["hovers"]


def test_tables_sort_by_numbers_and_filter(seen):
    number = lambda text: float(text.split()[0])  # noqa: E731
    assert sorted(map(number, seen["before"])) == list(map(number, seen["up"]))
    assert seen["up"][::-1] == seen["down"]
    assert seen["before"] != seen["up"] or seen["before"] != seen["down"]
    assert len(seen["filtered"]) == 2 and all("Gilbert" in name for name in seen["filtered"])


def test_nothing_is_wider_than_the_window(seen):
    assert seen["scroll"] <= seen["inner"]
    assert seen["wide"] == []


def test_titles_and_labels_stay_in_their_panels_and_apart(seen):
    assert (seen["cut"], seen["touching"]) == ([], [])
    assert seen["titles"] == sum(map(len, seen["figures"].values()))


def test_the_first_column_of_a_wide_table_stays_while_the_rest_scrolls(seen):
    assert seen["sticky"]


def test_two_points_are_compared(seen):
    assert re.match(
        r"Final validation loss, A minus B: [+\u2212]\d\.\d{4} nats per token \(95 % interval [+\u2212]",
        seen["compared"]["words"],
    )
    assert any("/network" in row[0] for row in seen["compared"]["rows"])
    assert [panel["title"] for panel in seen["figures"]["compare"]] == ["validation loss", "A minus B"]


PAPER_WIDTH, PAPER_HEIGHT = (round(mm * 96 / 25.4) for mm in (210 - 22, 297 - 22))  # A4 without its margins, in pixels
ON_PAPER = """<script>
addEventListener("load", () => setTimeout(() => {
  dispatchEvent(new Event("beforeprint"));
  const shown = selector => [...document.querySelectorAll(selector)].filter(e => e.checkVisibility());
  const seen = {
    controls: shown("input, select, button, nav, .drawing, .filter, #compare, .files, .records, noscript")
      .map(e => e.outerHTML.slice(0, 90)),
    wide: shown("body *").filter(e => e.getBoundingClientRect().right > innerWidth + 1)
      .map(e => e.tagName + " " + e.className),
    figures: shown("figure").map(e => ({id: e.id, tall: e.classList.contains("tall"), height: e.offsetHeight,
      picture: shown(`#${e.id} img`).map(i => i.clientHeight)})),
    cut: shown(".scroll, pre")
      .filter(e => e.scrollHeight > e.clientHeight + 1 || e.scrollWidth > e.clientWidth + 1).length,
    rows: [...document.querySelectorAll("#table-runs tbody tr")].filter(e => e.checkVisibility()).length,
    specs: shown("details pre").length, background: getComputedStyle(document.body).backgroundColor};
  const out = document.createElement("pre");
  out.id = "probe"; out.textContent = JSON.stringify(seen);
  document.body.append(out);
}, 3000));
</script>"""


def test_paper_has_two_figures_a_page_whole_tables_and_no_controls(folder, tmp_path):
    """The print styles on a screen as wide as the paper."""
    page = folder / "paper.html"
    text = (folder / "report.html").read_text().replace("@media print {", "@media all {")
    page.write_text(text.replace("<style>", ON_PAPER + "<style>", 1))
    dumped = browse(tmp_path / "profile", page, f"--window-size={PAPER_WIDTH},900", "--dump-dom")
    page.unlink()
    seen = json.loads(html.unescape(re.search(r'<pre id="probe">(.*?)</pre>', dumped, re.DOTALL)[1]))
    assert (seen["controls"], seen["wide"], seen["cut"]) == ([], [], 0)
    assert (seen["rows"], seen["specs"], seen["background"]) == (18, 2, "rgb(255, 255, 255)")
    assert len(seen["figures"]) == 8 and not any(figure["tall"] for figure in seen["figures"])
    for figure in seen["figures"]:
        assert len(figure["picture"]) == 1 and 100 < figure["picture"][0] < figure["height"] < PAPER_HEIGHT / 2, figure


def test_a_picture_that_is_too_tall_for_half_a_page_has_one_of_its_own(tmp_path):
    from droptest.report import _is_tall

    for width, height, tall in ((500, 200, False), (500, 549, False), (500, 551, True)):
        picture = tmp_path / "picture.svg"
        picture.write_text(f'<svg width="{width}pt" viewBox="0 0 {width} {height}" version="1.1"/>')
        assert _is_tall(picture) == tall


def test_the_page_prints(folder, tmp_path):
    browse(
        tmp_path / "profile",
        folder / "report.html",
        "--no-pdf-header-footer",
        f"--print-to-pdf={tmp_path / 'report.pdf'}",
    )
    pdf = (tmp_path / "report.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and len(pdf) > 50_000
    browse(
        tmp_path / "profile", folder / "report.html", "--window-size=1300,900", f"--screenshot={tmp_path / 'page.png'}"
    )
    assert (tmp_path / "page.png").stat().st_size > 20_000
