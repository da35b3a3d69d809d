# SPDX-License-Identifier: Apache-2.0
"""droptest doctor: its findings about good and bad machines, specs and launches."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
from cli_harness import BINARY, CLEAN_ENVIRONMENT, processes_with, run, start, wait_until, write_spec
from holds import kill
from launchers import mpirun

SMALL = ["--to-bytes", "4KiB", "--repetitions", "3"]
SCHEMA = Path(__file__).parents[2] / "experiments/schema/spec.schema.json"


@pytest.fixture
def needs_gloo(tmp_path):
    if "gloo (not built)" in run("info", cwd=tmp_path).out:
        pytest.skip("the gloo backend was not built")


def gloo(**changes):
    return {"backend": {"name": "gloo", "timeout_seconds": 30, **changes}}


def doctor(folder, *arguments, expect=0, environment=None):
    result = run(
        "doctor", "spec.json", "--json", *SMALL, *arguments, cwd=folder, expect=expect, environment=environment
    )
    return json.loads(result.out)


def checks(report, check):
    return [c for c in report["checks"] if c["check"] == check]


def the(report, check):
    (found,) = checks(report, check)
    return found


def failed(report):
    return {c["check"] for c in report["checks"] if c["status"] == "failed"}


def entries(folder):
    return {p.name for p in folder.iterdir()}


def leftovers():
    return {p for p in os.listdir(tempfile.gettempdir()) if p.startswith("droptest-doctor-")}


def expect_bandwidth(report, backend, ranks, sizes):
    (group,) = report["all_reduce"]
    assert (group["backend"], group["ranks"]) == (backend, ranks)
    assert [p["bytes"] for p in group["points"]] == sizes
    for point in group["points"]:
        assert point["wrong_elements"] == 0 and 1 <= point["repetitions"] <= 3
        algorithm = point["bytes"] / point["median_seconds"]
        assert point["algorithm_bytes_per_second"] == pytest.approx(algorithm)
        assert point["bus_bytes_per_second"] == pytest.approx(algorithm * 2 * (ranks - 1) / ranks)


def test_a_good_spec_is_ready_to_run(tmp_path):
    write_spec(tmp_path)
    report = doctor(tmp_path)
    assert report["ok"] and not failed(report)
    expect_bandwidth(report, "local", 2, [1024, 4096])
    expected = {"spec", "launch", "backend", "corpus", "results", "disk", "memory", "devices", "driver"}
    assert expected | {"hosts", "cores", "builds", "clocks", "all-reduce"} == {c["check"] for c in report["checks"]}
    assert entries(tmp_path) == {"spec.json", "corpus.txt"}

    text = run("doctor", "spec.json", *SMALL, cwd=tmp_path).out
    assert "ready to run (0 failed" in text and "all-reduce of floats over local, 2 ranks" in text
    for check in report["checks"]:
        assert any(line.startswith(check["status"]) and check["check"] in line for line in text.splitlines())


@pytest.mark.usefixtures("needs_gloo")
def test_ranks_that_are_processes_are_started_and_leave_nothing(tmp_path):
    write_spec(tmp_path, **gloo(), parallel={"tensor": 3})
    before = leftovers()
    report = doctor(tmp_path, "--from-bytes", "4")
    assert report["ok"]
    expect_bandwidth(report, "gloo", 3, [4, 16, 64, 256, 1024, 4096])
    assert the(report, "rendezvous")["status"] == "ok" and the(report, "host name")["status"] == "ok"
    assert "3 ranks on 1 machine" in the(report, "hosts")["seen"]
    assert entries(tmp_path) == {"spec.json", "corpus.txt"} and leftovers() == before


@pytest.mark.usefixtures("needs_gloo")
def test_a_sweep_is_checked_group_by_group(tmp_path):
    write_spec(tmp_path, sweep={"cross": {"/backend/name": ["local", "gloo"], "/network/loss/loss_rate": [0, 0.1]}})
    report = doctor(tmp_path)
    assert "4 runs" in the(report, "spec")["seen"]
    assert [(g["backend"], g["ranks"]) for g in report["all_reduce"]] == [("local", 2), ("gloo", 2)]
    assert len(checks(report, "corpus")) == 1 and len(checks(report, "all-reduce")) == 2


def test_a_missing_corpus_does_not_hide_the_rest(tmp_path):
    write_spec(tmp_path, data={"text": "nowhere.txt"})
    report = doctor(tmp_path, expect=1)
    assert not report["ok"] and failed(report) == {"corpus"}
    assert "nowhere.txt: cannot open" in the(report, "corpus")["seen"]
    assert str(tmp_path) in the(report, "corpus")["advice"]
    expect_bandwidth(report, "local", 2, [1024, 4096])
    text = run("doctor", "spec.json", *SMALL, cwd=tmp_path, expect=1).out
    assert "not ready to run (1 failed" in text


def test_a_spec_that_is_wrong_is_named_as_validate_does(tmp_path):
    write_spec(tmp_path)
    wrong = ["--set", "/training/steps=0"]
    report = doctor(tmp_path, *wrong, expect=1)
    validated = run("validate", "spec.json", *wrong, cwd=tmp_path, expect=2).err
    assert the(report, "spec")["seen"] in validated and failed(report) == {"spec"}
    # Checks without need of a spec are made.
    assert {"launch", "results", "devices", "driver"} <= {c["check"] for c in report["checks"]}


def test_results_that_cannot_be_written_are_a_failure(tmp_path):
    write_spec(tmp_path)
    report = doctor(tmp_path, "--out", "corpus.txt/results", expect=1)
    assert failed(report) == {"results"} and "corpus.txt" in the(report, "results")["seen"]
    assert the(report, "all-reduce")["status"] == "ok"


@pytest.mark.usefixtures("needs_gloo")
def test_ranks_that_cannot_meet_are_not_started(tmp_path):
    write_spec(tmp_path, **gloo(rendezvous={"kind": "file", "directory": "corpus.txt/meet"}))
    report = doctor(tmp_path, expect=1)
    assert failed(report) == {"rendezvous"} and "corpus.txt/meet" in the(report, "rendezvous")["seen"]
    assert the(report, "all-reduce")["status"] == "skipped" and report["all_reduce"] == []


@pytest.mark.usefixtures("needs_gloo")
def test_a_redis_that_does_not_answer_is_a_failure(tmp_path):
    with socket.socket() as unused:  # bound, but nobody listens
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        write_spec(tmp_path, **gloo(rendezvous={"kind": "redis", "host": "127.0.0.1", "port": port}))
        report = doctor(tmp_path, expect=1)
    assert failed(report) == {"rendezvous"} and f"127.0.0.1:{port}" in the(report, "rendezvous")["seen"]
    assert "start the server" in the(report, "rendezvous")["advice"]


@pytest.mark.usefixtures("needs_gloo")
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_a_redis_that_answers_is_met_at(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", tmp_path],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        write_spec(tmp_path, **gloo(rendezvous={"kind": "redis", "host": "127.0.0.1", "port": port}))
        report = doctor(tmp_path)
    finally:
        server.terminate()
        server.wait()
    assert the(report, "rendezvous")["seen"] == f"Redis at 127.0.0.1:{port}: written and read"
    expect_bandwidth(report, "gloo", 2, [1024, 4096])


def launch(folder, world_size, ranks, *arguments, name="one"):
    environment = {"WORLD_SIZE": str(world_size), "TORCHELASTIC_RUN_ID": name}
    started = [
        start("doctor", "spec.json", "--json", *SMALL, *arguments, cwd=folder,
              environment={**environment, "RANK": str(r), "LOCAL_RANK": str(r)})
        for r in ranks
    ]  # fmt: skip
    return [(*rank.communicate(timeout=600), rank.returncode) for rank in started]


@pytest.mark.usefixtures("needs_gloo")
def test_under_a_launcher_rank_0_speaks_for_all(tmp_path):
    write_spec(tmp_path, **gloo())
    (out, err, code), other = launch(tmp_path, 2, range(2))
    assert code == 0, err
    report = json.loads(out)
    expect_bandwidth(report, "gloo", 2, [1024, 4096])
    assert "torchrun: rank 0 of 2" in the(report, "launch")["seen"]
    assert other == ("", "", 0)


@pytest.mark.usefixtures("needs_gloo")
def test_what_another_rank_finds_is_told_by_rank_0(tmp_path):
    write_spec(tmp_path, **gloo())
    # The second rank is started in a folder without the corpus, as on a machine that does not have it.
    environment = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    meet = ["--set", f'/backend/rendezvous={{"kind": "file", "directory": "{tmp_path}/meet"}}']
    other = tmp_path / "other"
    other.mkdir()
    write_spec(other, **gloo())
    (other / "corpus.txt").unlink()
    ranks = [
        start("doctor", "spec.json", "--json", *SMALL, *meet, cwd=folder,
              environment={**environment, "RANK": str(r), "LOCAL_RANK": str(r)})
        for r, folder in enumerate([tmp_path, other])
    ]  # fmt: skip
    (out, err), quiet = (rank.communicate(timeout=600) for rank in ranks)
    assert ranks[0].returncode == 1 and (quiet, ranks[1].returncode) == (("", ""), 0), err
    corpora = checks(json.loads(out), "corpus")
    assert [c["status"] for c in corpora] == ["ok", "failed"]
    assert corpora[1]["about"].startswith("rank 1 on ") and "corpus.txt: cannot open" in corpora[1]["seen"]


@pytest.mark.usefixtures("needs_gloo")
def test_a_wrong_world_size_is_a_failure(tmp_path):
    write_spec(tmp_path, **gloo())
    (out, _, code), (other_out, other_err, other_code) = launch(tmp_path, 3, range(2))
    report = json.loads(out)
    assert code == 1 and failed(report) == {"launch"}
    assert "rank 0 of 3" in the(report, "launch")["seen"] and "the spec has 2 ranks" in the(report, "launch")["seen"]
    assert the(report, "all-reduce")["status"] == "skipped"
    # Rank 0 cannot know the findings of the others: they print them themselves.
    assert (other_out, other_code) == ("", 1) and "rank 1: launch: torchrun: rank 1 of 3" in other_err


@pytest.mark.usefixtures("needs_gloo")
def test_a_launchers_missing_variable_is_named(tmp_path):
    write_spec(tmp_path, **gloo())
    report = doctor(tmp_path, expect=1, environment={"RANK": "0"})
    assert failed(report) == {"launch"} and "WORLD_SIZE: is not set" in the(report, "launch")["seen"]
    assert the(report, "all-reduce")["status"] == "skipped"


@pytest.mark.usefixtures("needs_gloo")
def test_a_rank_that_never_comes_is_named_within_the_timeout(tmp_path):
    write_spec(tmp_path, **gloo(timeout_seconds=1))
    ((out, _, code),) = launch(tmp_path, 2, [0])
    report = json.loads(out)
    assert code == 1 and failed(report) == {"all-reduce"}
    assert "rank 1 did not come within 1000 ms" in the(report, "all-reduce")["seen"]
    ((out, err, code),) = launch(tmp_path, 2, [1], name="two")
    assert (out, code) == ("", 1) and "rank 0 did not come within 1000 ms" in err


@pytest.mark.usefixtures("needs_gloo")
def test_a_rank_that_is_killed_is_named_and_its_log_kept(tmp_path, holds):
    write_spec(tmp_path, **gloo(timeout_seconds=60))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    holds.at("all-reduce")
    environment = {"TMPDIR": str(temporary), **holds.environment}
    process = start("doctor", "spec.json", "--json", *SMALL, cwd=tmp_path, environment=environment)
    kill(dict(holds.reached("all-reduce", 2))[0])
    holds.release("all-reduce")
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 1
    seen = the(json.loads(out), "all-reduce")["seen"]
    assert "was killed by signal 9" in seen
    logs = Path(seen.split("(logs: ")[1].split(")")[0])
    assert logs.is_relative_to(temporary) and (logs / "rank_0.log").exists()
    assert not processes_with(f"{temporary}/droptest-doctor-")


@pytest.mark.usefixtures("needs_gloo")
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_under_mpirun_rank_0_speaks_for_all(tmp_path):
    write_spec(tmp_path, **gloo())
    command = [*mpirun(2), BINARY, "doctor", "spec.json", "--json"]
    result = subprocess.run(
        command + SMALL, cwd=tmp_path, env=CLEAN_ENVIRONMENT, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    assert "Open MPI: rank 0 of 2" in the(json.loads(result.stdout), "launch")["seen"]


def test_threads_under_a_launcher_are_a_warning(tmp_path):
    write_spec(tmp_path)
    (out, _, code), other = launch(tmp_path, 2, range(2))
    assert code == 0 and the(json.loads(out), "launch")["status"] == "warning"
    assert other == ("", "", 0)


def test_a_backend_that_is_not_built_is_a_failure(tmp_path):
    write_spec(tmp_path, backend={"name": "udp"})
    if "udp (not built)" not in run("info", cwd=tmp_path).out:
        pytest.skip("the udp backend was built")
    report = doctor(tmp_path, expect=1)
    assert failed(report) == {"backend"} and "local" in the(report, "backend")["advice"]
    assert the(report, "all-reduce")["status"] == "skipped"


def no_device(folder):
    return json.loads(run("info", "--json", cwd=folder).out)["cuda"]["absence"]


def test_ranks_that_are_devices_want_one_each(tmp_path):
    absence = no_device(tmp_path)
    if absence is None:
        pytest.skip("this machine has a device")
    write_spec(tmp_path, backend={"name": "nccl"}, device="cuda", parallel={"tensor": 2})
    report = doctor(tmp_path, expect=1)
    assert {"devices", "driver"} <= failed(report)
    assert the(report, "devices")["seen"] == f"2 devices wanted; {absence}"


@pytest.mark.skipif(
    "device" not in json.loads(SCHEMA.read_text())["properties"], reason="specs cannot ask for a device"
)
def test_a_spec_that_asks_for_cuda_wants_a_device(tmp_path):
    absence = no_device(tmp_path)
    if absence is None:
        pytest.skip("this machine has a device")
    write_spec(tmp_path, device="cuda")
    report = doctor(tmp_path, expect=1)
    assert "devices" in failed(report) and absence in the(report, "devices")["seen"]


@pytest.mark.parametrize(
    "arguments", [["--from-bytes", "1MiB"], ["--to-bytes", "2"], ["--to-bytes", "x"], ["--repetitions", "0"]]
)
def test_sizes_that_make_no_sense_are_refused(tmp_path, arguments):
    write_spec(tmp_path)
    result = run("doctor", "spec.json", "--to-bytes", "1KiB", *arguments, cwd=tmp_path, expect=2)
    assert arguments[0] in result.err and result.out == ""
