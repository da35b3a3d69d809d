# SPDX-License-Identifier: Apache-2.0
"""Records at a prompt and in a notebook: a few lines and a small table, of any number of runs."""

from html.parser import HTMLParser

from synthetic import BASE, NONE, bernoulli, write_quickstart, write_run, write_sweep

import droptest

MOST_BYTES = 20_000


class Cells(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.lines = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert not attributes
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.rows[-1].append(data) if self.open[-1] in ("td", "th") else self.lines.append(data)


def test_a_prompt_shows_the_runs_by_status_the_series_and_the_steps(mixed):
    records = droptest.load(mixed)
    assert repr(records).splitlines() == [
        f"Records of 'mixed' in {mixed}",
        "runs: 15 (8 completed, 4 diverged, 1 failed, 1 unfinished, 1 missing), up to step 200",
        "series: lossless; Bernoulli",
        f"warnings: {len(records.warnings)}, in .warnings",
    ]


def test_a_notebook_shows_the_points(tmp_path):
    records = droptest.load(write_quickstart(tmp_path))
    page = Cells(records._repr_html_())
    assert page.rows[0] == ["series", "loss rate", "seeds", "final validation loss", "difference to lossless",
                            "realised rate"]  # fmt: skip
    table = droptest.summary_table(records)
    assert page.rows[1:] == table[page.rows[0]].to_numpy().tolist()
    assert page.lines[0] == f"Records of 'synthetic' in {records.path}" and page.lines[-1] == "losses: nats per token"


def test_a_notebook_shows_at_most_20_kB_of_10000_runs(tmp_path):
    folder = write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.05)]}, seeds=1, name="<b>" * 60)
    records = droptest.load(folder)
    # As many runs as of a large sweep, each a series of its own with a name that grows in HTML.
    row = records.runs.iloc[-1:]
    many = row.loc[row.index.repeat(10_000)].reset_index(drop=True)
    many["run_id"] = [f"{place:016x}" for place in range(len(many))]
    quotes = '"' * 300  # of six bytes each in HTML
    many["series"] = [f"{place} {quotes} {place}" for place in range(len(many))]
    many["best_value"] = quotes
    records.runs, records.path, records.warnings = many, records.path / (10 * quotes), ["one"]
    page = records._repr_html_()
    assert 5_000 < len(page.encode()) < MOST_BYTES and len(repr(records)) < 5000
    shown = Cells(page)
    assert 10 < len(shown.rows) < 1 + 20  # the bytes end it, before the rows do
    assert f"and {10_000 - (len(shown.rows) - 1)} more points, in droptest.points(records)" in shown.lines
    assert "runs: 10000 (10000 completed), up to step 200" in repr(records)
    assert "; and 9994 more" in repr(records)


def test_records_of_one_run_and_of_none_have_texts(tmp_path):
    run = droptest.load(tmp_path / write_run(tmp_path, BASE))
    assert "runs: 1 (1 completed), up to step 200" in repr(run) and len(Cells(run._repr_html_()).rows) == 2
    run.runs = run.runs.iloc[:0]
    assert "runs: none" in repr(run) and len(Cells(run._repr_html_()).rows) == 1
