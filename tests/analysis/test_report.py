# SPDX-License-Identifier: Apache-2.0
import html.parser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from urllib.parse import unquote

import pytest
import synthetic
from synthetic import NONE, PACKAGES, ROOT, bernoulli

import droptest
from droptest import tables
from droptest.__main__ import main
from droptest.report import write_report
from droptest.summary import text_table


class Page(html.parser.HTMLParser):
    """Tags, links and text of a page; checks that tags close in order."""

    VOID = frozenset({"meta", "img", "br", "input"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], "", []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, key, value) for key, value in attributes]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.text += data


@pytest.fixture(scope="module")
def reported(mixed, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    environment = os.environ | {"PYTHONPATH": str(PACKAGES)}
    command = [sys.executable, "-m", "droptest", "report", str(mixed), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return out, done


def test_report_says_what_it_wrote_and_warns(reported):
    out, done = reported
    assert (done.returncode, done.stderr) == (0, "")
    assert f"report: {out / 'report.html'}" in done.stdout
    assert "warning:" in done.stdout
    assert re.search(r"Bernoulli +1 % .* 2/3 +2\.76\d\d ± ", done.stdout)
    names = ("tolerance", "final_loss", "training_curves", "differences", "divergence", "layers", "burst_lengths",
             "loss_rate_check")  # fmt: skip
    assert {p.name for p in (out / "plots").iterdir()} == {f"{n}.{e}" for n in names for e in ("png", "svg", "csv")}


def test_page_escapes_what_users_wrote(reported):
    text = (reported[0] / "report.html").read_text()
    page = Page(text)
    assert page.tags.count("script") == 3  # its data, plotly.js and its own
    assert "Does <script>alert('x')</script> & $50 of loss matter?" in page.text
    assert "rank 2 <is gone>" in page.text
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in text


def test_page_is_self_contained(reported, mixed):
    out, _ = reported
    text = (out / "report.html").read_text()
    page = Page(text)
    assert not re.search(r"https?://|//[a-z]+\.", text)
    assert "url(" not in text
    assert "@import" not in text
    sources = [value for tag, key, value in page.attributes if key == "src"]
    assert len(sources) == 8
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert not {"link", "iframe", "object"} & set(page.tags)
    links = [value for tag, key, value in page.attributes if tag == "a" and key == "href"]
    assert all((out / unquote(target)).is_file() for target in links if not target.startswith("#"))
    places = {value for _, key, value in page.attributes if key == "id"}
    assert {target[1:] for target in links if target.startswith("#")} <= places
    present = [p for p in mixed.rglob("*/*.json*") if p.is_file()]
    assert sum("metrics.jsonl" in target for target in links) == sum(p.name == "metrics.jsonl" for p in present)


def test_page_shows_tables_and_what_is_missing(reported):
    text = Page((reported[0] / "report.html").read_text()).text
    for wanted in (
        "15 runs planned: 8 completed, 4 diverged, 1 failed, 1 unfinished, 1 missing",
        "planned in sweep.json, not run yet",
        "no summary.json: the run goes on or was stopped, last logged step 100",
        "diverged at step 100",
        "Bernoulli at a packet loss rate of 40 %: 3 of 3 runs diverged.",
        "+0.0115 ± 0.0064",
        "one pair: no interval",
        "tensor parallel, backward",
        "Bernoulli: 1 % is tolerable; 20 % is not tolerable; undecided until there are more seeds: 5 %.",
        "python3 -m droptest plot tolerance ",
        " --name loss_statistics",
        "oneDNN 2.7.2",
        '"loss_rate": 0.4',
    ):
        assert wanted in text


def test_report_again_is_the_same_bytes_and_leaves_no_old_plots(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE]}, seeds=1)
    (folder / "plots").mkdir()
    (folder / "plots" / "divergence.png").write_bytes(b"of an earlier sweep")
    assert main(["report", str(folder)]) == 0
    assert not (folder / "plots" / "divergence.png").exists()
    assert "Not drawn:" in (folder / "report.html").read_text()
    first = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert main(["report", str(folder)]) == 0
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == first


def test_table_as_json_is_strict_json(mixed, capsys):
    assert main(["table", str(mixed), "--json"]) == 0
    value = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    points = {point["loss_rate"]: point for point in value[0]["points"]}
    assert points[0.01]["difference_to_lossless"]["mean"] == pytest.approx(0.0115)
    assert points[0.05]["final_validation_loss"]["half_width_95"] is None
    assert points[0.4]["runs"] == {"diverged": 3}


def test_plot_writes_one_figure(mixed, tmp_path, capsys):
    assert main(["plot", "loss_rate_check", str(mixed), "--out", str(tmp_path)]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"loss_rate_check.{e}" for e in ("csv", "png", "svg")]
    assert main(["plot", "pie", str(mixed)]) == 2
    assert "got 'pie', want one of tolerance" in capsys.readouterr().err


def test_errors_name_the_folder_and_exit_with_2(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nope")]) == 2
    assert f"droptest: error: {tmp_path / 'nope'}: no such folder" in capsys.readouterr().err
    assert main(["table", str(tmp_path)]) == 2
    assert "no records here" in capsys.readouterr().err
    with pytest.raises(SystemExit) as usage:
        main(["draw"])
    assert usage.value.code == 2


def test_a_report_whose_reader_has_left_is_drawn_to_its_end(mixed, tmp_path):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "droptest", "report", str(mixed), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=PACKAGES, check=False)
    os.close(write)
    assert (done.returncode, "Traceback" in done.stderr, "Broken pipe" in done.stderr) == (0, False, False)
    assert (tmp_path / "out" / "report.html").is_file() and (tmp_path / "out" / "plots").is_dir()


def test_a_python_without_pandas_is_told_what_to_install(mixed):
    # -S leaves out Debian's dist-packages, where pandas is.
    command = [sys.executable, "-S", "-m", "droptest", "table", str(mixed)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PACKAGES, check=False)
    assert done.returncode == 2
    assert "python3-pandas" in done.stderr
    assert "Traceback" not in done.stderr


def test_several_experiments_get_an_index(tmp_path, capsys):
    for name in ("one", "two & three"):
        synthetic.write_sweep(tmp_path, {"/network/loss": [NONE]}, seeds=1, name=name, outcomes=lambda *_: "missing")
    out = tmp_path / "out"
    assert main(["report", str(tmp_path), "--out", str(out)]) == 0
    page = Page((out / "report.html").read_text())
    links = [value for tag, key, value in page.attributes if tag == "a" and key == "href"]
    assert links == ["one/report.html", "two%20%26%20three/report.html"]
    assert all((out / unquote(link)).is_file() for link in links)
    capsys.readouterr()


def test_terminal_sequences_in_errors_are_not_printed(tmp_path, capsys):
    folder = synthetic.write_sweep(tmp_path, {"/data/text": ["\x1b[2Jx", "y"]}, seeds=1)
    assert main(["table", str(folder)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_text_that_no_file_can_hold_is_replaced(tmp_path):
    from droptest.report import _page, write_whole

    text = _page(title="a\ud800b\x00c", heading='<b> & "x"')
    write_whole(tmp_path / "page.html", text)
    title = "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"
    assert f"<title>{title}</title>" in (tmp_path / "page.html").read_text()
    assert "<h1>&lt;b&gt; &amp; &#34;x&#34;</h1>" in text


def test_an_unwritable_folder_is_an_error(mixed, tmp_path, capsys):
    target = tmp_path / "file"
    target.write_text("not a folder")
    assert main(["plot", "loss_rate_check", str(mixed), "--out", str(target)]) == 2
    assert str(target) in capsys.readouterr().err


def test_the_commands_of_tables_repeat_their_questions(tmp_path, capsys):
    """Each command below a table of the page makes the file of that table again."""
    losses = [NONE, bernoulli(0.05), bernoulli(0.2)]
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": losses}, seeds=3)
    assert main(["report", str(folder), "--effect", "0.25", "--effect", "0.01", "--equivalent", "0.03"]) == 0
    page = Page((folder / "report.html").read_text()).text
    commands = {words[words.index("--name") + 1]: words for words in map(shlex.split, re.findall(
        r"python3 -m (droptest table .*?)(?: · files|\n)", page))}  # fmt: skip
    asked = {
        name: [word for word in words if word.startswith("--") and word != "--name"] for name, words in commands.items()
    }
    assert asked["seeds_needed"] == ["--effect", "--effect"] and asked["equality"] == ["--equivalent"]
    assert not asked["summary"] and not asked["runs"]
    for name, words in commands.items():
        capsys.readouterr()
        assert main(words[1:]) == 0
        assert capsys.readouterr().out == (folder / "tables" / f"{name}.csv").read_text(), name


def test_a_report_without_questions_has_short_commands(reported):
    text = Page((reported[0] / "report.html").read_text()).text
    assert "--name seeds_needed" in text and "--effect" not in text and "--equivalent" not in text


def test_records_can_be_moved_with_their_report(tmp_path):
    folder = synthetic.write_sweep(tmp_path / "a", {"/network/loss": [NONE, bernoulli(0.1)]}, seeds=1)
    run_id = droptest.load(folder).runs.iloc[0]["run_id"]
    from droptest.report import relative

    assert relative(folder / run_id / "spec.json", folder) == f"{run_id}/spec.json"
    moved = shutil.move(folder, tmp_path / "b")
    assert droptest.load(moved).runs["twin"].notna().sum() == 1


def test_the_readme_names_the_columns_that_its_table_leaves_out(tmp_path):
    """Its first table is the summary of the quickstart."""
    header = text_table(droptest.load(synthetic.write_quickstart(tmp_path, seeds=1))).splitlines()[0]
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = next(line for line in page.splitlines() if line.startswith("series  "))
    absent = [name for name in re.split(r"  +", header.strip()) if name not in re.split(r"  +", shown.strip())]
    sentence = re.search(r"The columns? (.+?) of the table (?:is|are) left out here", page)
    assert absent == (re.findall(r"`(.+?)`", sentence[1]) if sentence else [])


def test_memory_has_a_row_for_each_kind_and_pool(tmp_path):
    from droptest import tables

    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE]}, seeds=2)
    assert tables.table("memory", droptest.load(folder)) is None
    for i, path in enumerate(sorted(folder.glob("*/summary.json"))):
        summary = json.loads(path.read_text())
        summary["memory"] = {
            "process": {"bytes": (300 + i) << 20, "step": 4},
            "device": {"bytes": (500 - i) << 20, "step": 6},
            "model": {"loss_layer": {"bytes": 1 << 19, "step": 2}},
            "pools": {
                "messages": {"bytes": 1 << 20, "taken": 90, "allocated": 3},
                "calls": {"taken": 8, "allocated": 2},
            },
        }
        path.write_text(json.dumps(summary))
    found = tables.table("memory", droptest.load(folder))
    assert [row[1:] for row in found.rows] == [
        ("loss layer", "0.5", "2", "-", "-", "2"), ("process", "301.0", "4", "-", "-", "2"),
        ("device", "500.0", "6", "-", "-", "2"),
        ("pool of messages", "1.0", "-", "90", "3", "2"), ("pool of calls", "-", "-", "8", "2", "2"),
    ]  # fmt: skip


def test_what_was_not_measured_is_a_dash_or_a_word(tmp_path):
    cross = {"/network/loss": [NONE, bernoulli(0.05)]}
    folder = synthetic.write_sweep(tmp_path, cross, seeds=2, final_losses=lambda *_: 2.5)
    for place, path in enumerate(sorted(folder.glob("*/summary.json"))):
        summary = json.loads(path.read_text())
        summary["provenance"]["libraries"] = {"oneDNN": "2.6.3"} if place else {}
        path.write_text(json.dumps(summary))
    records = droptest.load(folder)
    frame = records.loss_statistics
    nothing = ["configured_rate", "lost", "z", "configured_mean_burst_packets", "mean_burst_packets"]
    frame.loc[frame["half"] == "gather", nothing] = 0
    found = tables.table("loss_statistics", records)
    rows = [dict(zip(found.header, row, strict=True)) for row in found.rows]
    measures = {(row["smallest z"], row["configured burst"], row["realised burst"])
                for row in rows if row["half"] == "gather half"}  # fmt: skip
    assert measures == {("-", "-", "-")}
    assert "-" not in {row["realised burst"] for row in rows if row["half"] == "reduce half"}
    page = write_report(records, tmp_path / "out").report.read_text(encoding="utf-8")
    assert "not given (1 run)" in page and "oneDNN 2.6.3 (3 runs)" in page
    assert "nats per token; its interval includes 0." in page and "3 x 4" not in page


def test_no_text_leaves_the_plural_to_the_reader():
    for path in sorted((PACKAGES / "droptest").rglob("*.py")):
        assert not re.search(r"\b(run|thread|rank|seed|point)\(s\)", path.read_text(encoding="utf-8")), path


def test_a_page_defines_its_terms_and_tells_units_next_to_each_table(tmp_path):
    losses = [NONE, *map(bernoulli, (0.01, 0.2))]
    records = droptest.load(synthetic.write_sweep(tmp_path, {"/network/loss": losses}, seeds=3))
    text = Page(write_report(records, tmp_path / "out").report.read_text(encoding="utf-8")).text
    twin = "The lossless twin of a run is the run without loss with the same seeds."
    assert text.index(twin) < text.index("Dashed line")
    for name in ("summary", "runs", "seeds_needed", "equality"):
        assert "nats per token" in tables.table(name, records).note, name
    assert "a pair is a run with its lossless twin" in tables.table("seeds_needed", records).note
    assert "mean burst is in packets" in tables.table("summary", records).note


def test_a_sentence_names_the_rates_whose_intervals_it_speaks_of(tmp_path):
    losses = {0.0: 2.0, 0.01: 2.0, 0.05: 2.1, 0.2: 2.5}

    def page(outcomes):
        folder = synthetic.write_sweep(
            tmp_path, {"/network/loss": [NONE, *map(bernoulli, (0.01, 0.05, 0.2))]}, seeds=2,
            name=f"named{len(list(tmp_path.iterdir()))}", outcomes=outcomes,
            final_losses=lambda point, seed: losses[point["/network/loss"].get("loss_rate", 0.0)]
            + (0.0 if point["/network/loss"] == NONE else (-1) ** seed * 0.6),
        )  # fmt: skip
        return write_report(droptest.load(folder), folder / "report").report.read_text(encoding="utf-8")

    assert "; the intervals of all rates include 0." in page(None)
    without_one = page(lambda p, s: "missing" if s == 2 and p["/network/loss"].get("loss_rate") == 0.2 else "completed")
    assert "; the intervals at 1 %, 5 % include 0." in without_one and "of all rates" not in without_one
    only_one = page(
        lambda p, s: "missing" if s == 2 and p["/network/loss"].get("loss_rate") in (0.2, 0.05) else "completed"
    )
    assert "; the interval at 1 % includes 0." in only_one
