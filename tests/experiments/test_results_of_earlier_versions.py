# SPDX-License-Identifier: Apache-2.0
"""Results of earlier versions are read, or refused by the name of the file (docs/record_versions.md).

tests/vectors/results_of_0_1 holds the results; its README.md says how they were made. A version number that is raised
on purpose changes what is expected here: the error text of the refusal takes the place of the numbers.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_harness import BINARY, losses_of, run, run_folders, write_spec

ROOT = Path(__file__).resolve().parents[2]
VECTOR = ROOT / "tests/vectors/results_of_0_1"
sys.path.insert(0, str(ROOT / "analysis"))
os.environ.setdefault("DROPTEST_LIBRARY", str(Path(BINARY).parents[1] / "api/libdroptest.so.0.1"))

import droptest  # noqa: E402

LOSSLESS, LOSSY, INTERRUPTED = "492c6c5e0f3c1080", "cb65c23ab55105b5", "a2b56c21588a8530"
FINAL = {LOSSLESS: 4.850039294820609, LOSSY: 4.856115371107397}
DIGESTS = {"tp_forward": "30ca36233334d865", "tp_backward": "f1a0011d5ec01317"}
LOST = {"tp_forward": (576, 49), "tp_backward": (576, 73)}  # packets, lost
RUN = Path("results/interrupted") / INTERRUPTED
# Float products differ between processors (numerics_version_test.cc has the same tolerance).
OTHER_PROCESSOR = 1e-5


@pytest.fixture
def folder(tmp_path):
    """A copy, since commands write into the folders of results."""
    return Path(shutil.copytree(VECTOR, tmp_path / "copy"))


def statistics_of(path):
    return json.loads(path.read_text())["classes"]


def counts_and_digests(classes):
    return {name: ((c["packets"], c["lost"]), c["digest"]) for name, c in classes.items()}


EXPECTED = {name: (LOST[name], DIGESTS[name]) for name in DIGESTS}


def losses_in(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {m["step"]: (m.get("train_loss"), m.get("validation_loss")) for m in lines}


def test_a_sweep_is_loaded_with_its_points_losses_and_fates(folder):
    records = droptest.load(folder / "results/sweep")
    assert records.warnings == [] or all("unreadable" not in warning for warning in records.warnings)
    assert list(records.runs["status"]) == ["completed", "completed"]
    assert dict(zip(records.runs["run_id"], records.runs["final_validation_loss"], strict=True)) == FINAL
    assert len(droptest.points(records)) == 2
    assert sorted(set(records.metrics["step"])) == [0, 3, 6, 9, 12]
    both = records.loss_statistics.query("half == 'both'")
    assert {row["class"]: (row["packets"], row["lost"]) for row in both.to_dict("records")} == LOST
    assert len(records.links) == 8  # two links of two classes and halves
    assert counts_and_digests(statistics_of(folder / "results/sweep" / LOSSY / "loss_statistics.json")) == EXPECTED


def test_a_program_is_loaded_and_its_saved_state_is_refused(folder):
    records = droptest.load(folder / "results/program")
    (row,) = records.loss_statistics.query("half == 'both'").to_dict("records")
    assert (row["class"], row["packets"], row["lost"]) == ("dp_gradient", 1300, 120)
    assert all(math.isnan(row[measure]) for measure in ("nmse", "cosine", "divergence_max", "divergence_rms"))
    assert statistics_of(folder / "results/program/loss_statistics.json")["dp_gradient"]["digest"] == "7c3d84b8f7cd975d"
    if not Path(os.environ["DROPTEST_LIBRARY"]).is_file():
        pytest.skip("libdroptest.so was not built")
    loss = {"model": "gilbert_elliott", "loss_rate": 0.1, "mean_burst_packets": 4}
    network = droptest.Network({"network": {"loss": loss}, "seed": 7}, rank=1, world_size=2)
    with pytest.raises(droptest.NetworkError, match="state: got version 1, want 2"):
        network.load_state_dict(json.loads((folder / "state_of_rank_1.json").read_text()))
    with pytest.raises(droptest.NetworkError, match="state: got damaged bytes"):
        network.load_state_dict(json.loads((folder / "bad/state_of_rank_1.json").read_text()))
    # A rank of today refuses the counts that the other rank of then has left.
    (folder / "results/program/loss_statistics.json").unlink()
    source = {"network": {"loss": loss}, "seed": 7, "statistics": str(folder / "results/program")}
    first = droptest.Network(source, rank=0, world_size=2)
    first.flow("dp_gradient", 0).next(500 * 352)
    with pytest.raises(droptest.NetworkError, match=r"ranks/1\.json: .*/schema_version: got 1, want 2"):
        first.write_statistics()


def test_the_same_sweep_and_the_spec_of_a_run_have_the_same_run_ids(folder):
    def summaries():
        return {path: path.stat().st_mtime_ns for path in folder.glob("results/sweep/*/summary.json")}

    before = summaries()
    printed = run("sweep", "sweep.json", cwd=folder).out
    assert LOSSLESS in printed and LOSSY in printed and "2 runs in results/sweep" in printed
    run("run", f"results/sweep/{LOSSY}/spec.json", cwd=folder)
    assert summaries() == before, "finished runs are not repeated"


def elements_of(path, tensor):
    """The bytes of a tensor of a safetensors file."""
    content = path.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    first, last = json.loads(content[8:data])[tensor]["data_offsets"]
    return content[data + first : data + last]


def test_the_checkpoint_of_a_killed_run_is_shown_verified_and_exported(folder):
    shown = run("checkpoint", "show", RUN, cwd=folder).out
    assert re.search(rf"^6 +{INTERRUPTED} +tensor 2 +0 +2 ", shown, re.MULTILINE)
    assert "step-6: intact" in run("checkpoint", "verify", RUN, cwd=folder).out
    run("checkpoint", "export", RUN, "--out", "there.safetensors", cwd=folder)
    manifest = json.loads((folder / RUN / "checkpoints/step-6/manifest.json").read_text())
    halves = []
    for file in manifest["ranks"]:
        keys = {t["tensor"]: t["key"] for t in file["tensors"] if t["field"] == "values"}
        halves.append(elements_of(folder / RUN / "checkpoints/step-6" / file["file"], keys["h.0.mlp.c_fc.bias"]))
    assert len(halves) == 2 and halves[0] != halves[1]
    assert elements_of(folder / "there.safetensors", "h.0.mlp.c_fc.bias") == b"".join(halves)
    words = ("--model", "there.safetensors", "--config", RUN / "spec.json", "--tokens", "corpus.txt")
    evaluated = json.loads(run("eval", *words, "--json", cwd=folder).out)
    assert evaluated["mean_loss"] == pytest.approx(losses_in(folder / "uninterrupted_metrics.jsonl")[6][1], abs=0.1)


def test_the_checkpoint_of_a_killed_run_is_not_resumed_and_a_fresh_run_has_the_losses_of_then(folder):
    refused = run("resume", RUN, cwd=folder, expect=2).err
    assert f"{RUN}/checkpoints: no checkpoint is intact: " in refused
    assert f"{RUN}/checkpoints/step-6/manifest.json: /schema_version: got 3, want 4 to go on from its state" in refused
    refused = run("resume", RUN, "--at", "6", "--set", "/name=other", cwd=folder, expect=2).err
    assert "/step-6/manifest.json: /schema_version: got 3, want 4" in refused
    run("checkpoint", "verify", RUN, cwd=folder)
    run("run", "interrupted.json", "--out", "here", "--quiet", cwd=folder)
    there = folder / "here/interrupted" / INTERRUPTED
    whole = losses_in(folder / "uninterrupted_metrics.jsonl")
    fresh = losses_of(there)
    assert fresh.keys() == whole.keys()
    for step, losses in whole.items():
        assert fresh[step] == pytest.approx(losses, rel=OTHER_PROCESSOR)
    assert counts_and_digests(statistics_of(there / "loss_statistics.json")) == EXPECTED
    assert counts_and_digests(statistics_of(folder / "uninterrupted_loss_statistics.json")) == EXPECTED


def test_weights_are_evaluated(folder):
    expected = {LOSSLESS: 4.841479930738644, LOSSY: 4.856057020360936}
    for name, loss in expected.items():
        path = f"results/sweep/{name}"
        words = ("--model", f"{path}/weights.safetensors", "--config", f"{path}/spec.json", "--tokens", "corpus.txt")
        found = json.loads(run("eval", *words, "--json", cwd=folder).out)
        assert found["tokens"] == 3000
        assert found["mean_loss"] == pytest.approx(loss, rel=OTHER_PROCESSOR)


def test_watch_shows_finished_and_stopped_runs(folder):
    frame = run("watch", "results", "--once", cwd=folder).out
    assert "3 runs: 1 stopped, 2 completed" in frame and "no records of this version" not in frame
    rows = {words[-1]: line for line in frame.splitlines() if (words := re.findall(r"\d\.\d{4}", line))}
    assert "completed  12/12" in rows["4.8500"] and "completed  12/12" in rows["4.8561"]
    assert "stopped    6/12" in rows["5.0923"]


def test_report_reads_a_sweep_and_a_program_and_names_a_bad_file(folder):
    shutil.rmtree(folder / "results/interrupted")
    shutil.copytree(folder / "results/sweep", folder / "results/damaged")
    bad = folder / "results/damaged" / LOSSY / "metrics.jsonl"
    shutil.copy(folder / "bad/metrics.jsonl", bad)
    for path in (folder / "results/damaged" / LOSSLESS).iterdir():  # fewer figures
        path.unlink()
    command = [BINARY, "report", "results"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True,
                          env=os.environ | {"DROPTEST_PYTHON": sys.executable})  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = done.stdout + done.stderr
    assert re.search(r"^lossless .* 4\.8500 ", printed, re.MULTILINE)
    assert re.search(r"^Gilbert-Elliott, burst 3 .* 4\.8561 .* \+0\.0061 .* 10\.5903 %", printed, re.MULTILINE)
    assert re.search(r"^Gilbert-Elliott, burst 4 .* 9\.2308 %", printed, re.MULTILINE)
    assert f"run {LOSSY} was left out: results/damaged/{LOSSY}/metrics.jsonl: line 2: " in printed


@pytest.mark.parametrize(
    ("file", "reason"),
    [("metrics.jsonl", r"line 2: Expecting"), ("summary.json", r"not JSON: Unterminated string")],
)
def test_load_names_a_bad_file(folder, file, reason):
    path = folder / "results/sweep" / LOSSY / file
    shutil.copy(folder / "bad" / file, path)
    records = droptest.load(folder / "results/sweep")
    assert any(re.search(f"run {LOSSY} was left out: {re.escape(str(path))}: {reason}", w) for w in records.warnings)
    assert list(records.runs.query("status == 'completed'")["run_id"]) == [LOSSLESS]


@pytest.mark.parametrize(
    ("file", "reason"), [("metrics.jsonl", "line 2: no JSON object"), ("summary.json", "line 67, column ")]
)
def test_watch_names_a_bad_file(folder, file, reason):
    path = Path("results/sweep") / LOSSY / file
    shutil.copy(folder / "bad" / file, folder / path)
    frame = run("watch", "results/sweep", "--once", cwd=folder).out
    assert "left out: what this version does not read in 1 files, the first 1:\n" in frame
    assert f"\n{path}: {reason}" in frame


def test_a_newer_version_of_a_record_is_refused_by_load_and_named_by_watch(folder):
    path = Path("results/sweep") / LOSSY / "summary.json"
    summary = json.loads((folder / path).read_text())
    (folder / path).write_text(json.dumps(summary | {"schema_version": 2}))
    records = droptest.load(folder / "results/sweep")
    text = "/schema_version: got 2, this program reads 1"
    assert any(f"{folder / path}: {text}" in warning for warning in records.warnings)
    frame = run("watch", "results/sweep", "--once", cwd=folder).out
    assert f"\n{path}: /schema_version: got 2, want 1" in frame


def test_a_bad_checkpoint_is_refused_by_name(folder):
    manifest = RUN / "checkpoints/step-6/manifest.json"
    shutil.copy(folder / "bad/manifest.json", folder / manifest)
    refused = run("resume", RUN, cwd=folder, expect=2).err
    assert f"{RUN}/checkpoints: no checkpoint is intact: {manifest}: line " in refused and "not JSON" in refused


def test_a_spec_of_other_numerics_is_refused_by_name(folder):
    path = folder / RUN / "spec.json"
    spec = json.loads(path.read_text())
    path.write_text(json.dumps(spec | {"numerics_version": 2}))
    refused = run("resume", RUN, cwd=folder, expect=2).err
    assert f"{RUN}/spec.json: /numerics_version: got 2, but this droptest has version 1 for this spec" in refused


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """A run whose losses depend on virtual time, with the spec that version 1 of the numerics would have written."""
    folder = tmp_path_factory.mktemp("timed")
    link = {"latency_microseconds": 5, "bandwidth_gbit_per_second": 10}
    time = {"link": link, "compute_milliseconds": 1, "deadline_microseconds": 400}
    write_spec(folder, time=time, checkpoint={"every_steps": 4, "async": False})
    run("run", "spec.json", "--quiet", cwd=folder)
    (there,) = run_folders(folder)
    spec = json.loads((there / "spec.json").read_text())
    assert spec["numerics_version"] == 2
    (there / "spec.json").write_text(json.dumps(spec | {"numerics_version": 1}))
    return there


REASON = "spec.json: /numerics_version: got 1, but this droptest has version 2 for a spec with fates that depend on"


def test_a_spec_of_earlier_numerics_is_read_where_nothing_is_trained(timed):
    work = timed.parents[2]
    arguments = ("--config", timed / "spec.json", "--tokens", "corpus.txt", "--json")
    evaluated = json.loads(run("eval", "--model", timed / "weights.safetensors", *arguments, cwd=work).out)
    assert math.isfinite(evaluated["mean_loss"])
    run("export", timed, "--huggingface", "--out", "there", cwd=work)
    run("export", timed / "spec.json", "--initial", "--out", "first.safetensors", cwd=work)
    records = droptest.load(timed)
    assert list(records.runs["status"]) == ["completed"]


def test_a_spec_of_earlier_numerics_is_not_trained_unless_it_is_changed(timed):
    work = timed.parents[2]
    for command in (("resume", timed), ("run", timed / "spec.json")):
        assert REASON in run(*command, cwd=work, expect=2).err
    run("resume", timed, "--at", "8", "--set", "/time=null", "--set", "/name=other", "--quiet", cwd=work)
    (other,) = run_folders(work, "other")
    assert json.loads((other / "spec.json").read_text())["numerics_version"] == 1


def test_bad_weights_are_refused_by_name(folder):
    words = ("--config", f"results/sweep/{LOSSY}/spec.json", "--tokens", "corpus.txt")
    refused = run("eval", "--model", "bad/weights.safetensors", *words, cwd=folder, expect=2).err
    assert 'bad/weights.safetensors: tensor "wte.weight": shape: more than the 5496 bytes of data in' in refused


def test_the_vector_names_no_machine():
    """Its records speak of the project alone."""
    for path in VECTOR.rglob("*"):
        if path.suffix in (".json", ".jsonl"):
            text = path.read_text()
            assert not re.search(r"/(home|root|tmp|work)/", text), path
            for host in re.findall(r'"host": *"([^"]*)"', text):
                assert host == "node1", path
