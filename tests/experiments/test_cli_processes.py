# SPDX-License-Identifier: Apache-2.0
"""Ranks that are processes: started by droptest itself, by torchrun-style variables, by mpirun."""

import json
import os
import re
import shutil
import subprocess

import pytest
from cli_harness import (
    BINARY,
    CLEAN_ENVIRONMENT,
    losses_of,
    marks_of,
    metrics_of,
    processes_with,
    run,
    run_folders,
    start,
    summary_of,
    wait_until,
    write_spec,
)
from holds import kill, stop
from launchers import mpirun


def built(backend, folder):
    return f"{backend} (not built)" not in run("info", cwd=folder).out


@pytest.fixture(autouse=True)
def _needs_gloo(tmp_path):
    if not built("gloo", tmp_path):
        pytest.skip("the gloo backend was not built")


def gloo(**changes):
    return {"backend": {"name": "gloo", "timeout_seconds": 30}, **changes}


def test_ranks_are_started_and_agree_with_local(tmp_path):
    write_spec(tmp_path, **gloo())
    result = run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    assert summary_of(folder)["status"] == "completed" and folder.name in result.out
    assert not {"ranks", "rendezvous"} & {p.name for p in folder.iterdir()}
    run("run", "spec.json", "--out", "local", "--set", "/backend/name=local", cwd=tmp_path)
    (local,) = run_folders(tmp_path, out="local")
    for step, losses in losses_of(local).items():
        for ours, theirs in zip(losses_of(folder)[step], losses, strict=True):
            assert ours == theirs or ours == pytest.approx(theirs, abs=1e-5)
    assert "nothing to do" in run("run", "spec.json", cwd=tmp_path).out


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_replicas_under_loss_have_the_bits_of_local(tmp_path, zero):
    loss = {"loss": {"model": "bernoulli", "loss_rate": "5%"}}
    write_spec(tmp_path, **gloo(parallel={"tensor": 2, "data": 2, "zero": zero}, network=loss))
    run("run", "spec.json", cwd=tmp_path)
    run("run", "spec.json", "--out", "local", "--set", "/backend/name=local", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    (local,) = run_folders(tmp_path, out="local")
    assert losses_of(folder) == losses_of(local)
    statistics = [json.loads((f / "loss_statistics.json").read_text())["classes"] for f in (folder, local)]
    classes = {"tp_forward", "tp_backward", "dp_gradient"} | ({"parameter_gather"} if zero else set())
    assert set(statistics[0]) == classes
    for name in classes:
        assert statistics[0][name]["digest"] == statistics[1][name]["digest"]


def test_replicas_that_leave_and_come_back_have_the_bits_of_local(tmp_path):
    loss = {"fill": "stale", "loss": {"model": "gilbert_elliott", "loss_rate": "5%", "mean_burst_packets": 3}}
    absences = [{"data_rank": 1, "from": 3, "until": 8}, {"data_rank": 2, "from": 6}]
    write_spec(tmp_path, **gloo(parallel={"tensor": 2, "data": 3}, network=loss, failures={"replicas": absences}))
    run("run", "spec.json", cwd=tmp_path)
    run("run", "spec.json", "--out", "local", "--set", "/backend/name=local", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    (local,) = run_folders(tmp_path, out="local")
    assert losses_of(folder) == losses_of(local)
    digests = [
        {name: c["digest"] for name, c in json.loads((f / "loss_statistics.json").read_text())["classes"].items()}
        for f in (folder, local)
    ]
    assert digests[0] == digests[1] and "dp_gradient" in digests[0]
    expected = [{"data_rank": 1, "from": 3, "steps": 5}, {"data_rank": 2, "from": 6, "steps": 7}]
    assert summary_of(folder)["replica_absences"] == summary_of(local)["replica_absences"] == expected
    there = {line["step"]: line.get("replicas") for line in metrics_of(folder)}
    assert there == {0: None, 2: None, 4: 2, 6: 1, 8: 2, 10: 2, 12: 2}
    fewer = "10 of 12 steps had fewer replicas than the 3 of /parallel/data"
    assert marks_of(summary_of(folder)) == marks_of(summary_of(local)) == {"fewer_replicas": fewer}


def test_a_pipeline_under_loss_has_the_bits_of_local(tmp_path):
    loss = {"loss": {"model": "bernoulli", "loss_rate": "5%"}}
    layout = {"pipeline": 2, "chunks": 2, "schedule": "zero_bubble", "data": 2, "zero": 1}
    write_spec(tmp_path, **gloo(parallel=layout, network=loss))
    more = ["--set", "/model/layers=4", "--set", "/training/accumulation=4"]
    run("run", "spec.json", *more, cwd=tmp_path)
    run("run", "spec.json", "--out", "local", "--set", "/backend/name=local", *more, cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    (local,) = run_folders(tmp_path, out="local")
    assert losses_of(folder) == losses_of(local)
    statistics = [json.loads((f / "loss_statistics.json").read_text())["classes"] for f in (folder, local)]
    names = {"pp_activation", "pp_gradient", "embedding_gradient", "dp_gradient", "parameter_gather"}
    assert set(statistics[0]) == names
    for name in names:
        assert statistics[0][name]["digest"] == statistics[1][name]["digest"]
    weights = [(f / "weights.safetensors").read_bytes() for f in (folder, local)]
    headers = [8 + int.from_bytes(w[:8], "little") for w in weights]  # with run ids
    assert weights[0][headers[0] :] == weights[1][headers[1] :]


FOUR_RANKS = [
    ({"tensor": 4}, 0),
    ({"tensor": 4}, 2),
    ({"tensor": 2, "data": 2, "zero": 3}, 3),
    ({"data": 4, "zero": 1}, 1),
    ({"pipeline": 2, "data": 2}, 2),
    ({"pipeline": 2, "tensor": 2}, 3),
]


@pytest.mark.parametrize("parallel,victim", FOUR_RANKS)
def test_a_killed_rank_fails_the_run_and_is_named(tmp_path, holds, parallel, victim):
    # Far longer than the test waits: a rank that died is found without the timeout.
    write_spec(tmp_path, backend={"name": "gloo", "timeout_seconds": 3600}, parallel=parallel)
    holds.at("step-3")
    words = ("run", "spec.json", "--out", tmp_path / "out", "--set", "/model/layers=2")
    launcher = start(*words, cwd=tmp_path, environment=holds.environment)
    ranks = dict(holds.reached("step-3", 4))
    kill(ranks[victim])
    holds.release("step-3")
    _, err = launcher.communicate(timeout=600)
    assert launcher.returncode == 1
    assert f"rank {victim} of 4 was killed by signal 9" in err
    assert not processes_with(f"worker {tmp_path}/out")
    (folder,) = run_folders(tmp_path, out="out")
    summary = summary_of(folder)
    assert summary["status"] == "failed" and f"rank {victim} of 4" in summary["error"]


def test_a_rank_that_stalls_is_named_within_the_timeout(tmp_path, holds):
    write_spec(tmp_path, backend={"name": "gloo", "timeout_seconds": 5})
    holds.at("step-3")
    launcher = start("run", "spec.json", "--out", tmp_path / "out", cwd=tmp_path, environment=holds.environment)
    stop(dict(holds.reached("step-3", 2))[1])
    holds.release("step-3")
    _, err = launcher.communicate(timeout=600)
    assert launcher.returncode == 1
    assert "rank 1" in err
    assert not processes_with(f"worker {tmp_path}/out")


def test_a_run_that_continues_says_so_and_shows_its_new_lines_alone(tmp_path, holds):
    write_spec(tmp_path, **gloo(checkpoint={"every_steps": 2, "async": False}, record={"every_steps": 1}))
    holds.at("step-8")
    process = start("run", "spec.json", cwd=tmp_path, environment=holds.environment)
    kill(process.pid, *(pid for _, pid in holds.reached("step-8", 2)))
    process.communicate()
    holds.release("step-8")
    (folder,) = run_folders(tmp_path)
    # The newest checkpoint is damaged: the run continues from the one before it.
    with (folder / "checkpoints/step-6/rank-00000.safetensors").open("r+b") as file:
        file.truncate(100)
    metrics = folder / "metrics.jsonl"
    metrics.write_text(re.sub(r'"train_loss":[0-9.]+', '"train_loss":99.5', metrics.read_text()))
    err = run("run", "spec.json", cwd=tmp_path).err
    assert "droptest: continues after step 4\n" in err
    shown = re.findall(r"^step (\d+)/12: training loss ([0-9.]+)", err, re.MULTILINE)
    assert [int(step) for step, _ in shown] == list(range(5, 13)) and "99.5" not in dict(shown).values()
    assert [line["step"] for line in metrics_of(folder)] == list(range(13))
    assert summary_of(folder)["resumed_at"] == [4]


@pytest.mark.parametrize("command", ["run", "sweep", "search"])
@pytest.mark.parametrize("backend", ["local", "gloo"])
def test_a_command_goes_on_where_nobody_reads_what_it_prints(tmp_path, backend, command):
    search = {"search": {"high": "90%", "seeds": 2, "max_runs": 6}} if command == "search" else {}
    write_spec(tmp_path, backend={"name": backend, "timeout_seconds": 20}, **search)
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([BINARY, command, "spec.json"], cwd=tmp_path, env=CLEAN_ENVIRONMENT, stdout=write,
                          stderr=write, stdin=subprocess.DEVNULL, check=False)  # fmt: skip
    os.close(write)
    assert done.returncode == 1, "standard output cannot be written"
    assert {summary_of(folder)["status"] for folder in run_folders(tmp_path)} == {"completed"}


def test_ranks_do_not_outlive_their_launcher(tmp_path, holds):
    write_spec(tmp_path, **gloo())
    holds.at("step-3")
    launcher = start("run", "spec.json", "--out", tmp_path / "out", cwd=tmp_path, environment=holds.environment)
    ranks = holds.reached("step-3", 2)
    assert sorted(processes_with(f"worker {tmp_path}/out")) == sorted(pid for _, pid in ranks)
    kill(launcher.pid)
    launcher.communicate()
    wait_until(lambda: not processes_with(f"worker {tmp_path}/out"))


def test_an_error_on_all_ranks_is_said_once_and_clearly(tmp_path):
    (tmp_path / "short.txt").write_text("too short")
    write_spec(tmp_path, **gloo(data={"text": "short.txt"}))
    result = run("run", "spec.json", cwd=tmp_path, expect=1)
    assert "short.txt: 9 tokens" in result.err and len(result.err.splitlines()) == 1


def launch_by_variables(folder, world_size, ranks, launch="one"):
    environment = {"WORLD_SIZE": str(world_size), "TORCHELASTIC_RUN_ID": launch}
    return [
        start("run", "spec.json", cwd=folder, environment={**environment, "RANK": str(r), "LOCAL_RANK": str(r)})
        for r in ranks
    ]


def test_rank_and_world_size_come_from_torchrun_variables(tmp_path):
    write_spec(tmp_path, **gloo())
    ranks = launch_by_variables(tmp_path, 2, range(2))
    outputs = [rank.communicate(timeout=600) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    (folder,) = run_folders(tmp_path)
    assert summary_of(folder)["status"] == "completed"
    assert folder.name in outputs[0][0] and outputs[1][0] == ""

    # Launched again: all ranks agree that there is nothing to do.
    before = (folder / "summary.json").stat().st_mtime_ns
    ranks = launch_by_variables(tmp_path, 2, range(2), launch="two")
    for rank in ranks:
        rank.communicate(timeout=600)
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert (folder / "summary.json").stat().st_mtime_ns == before


def test_a_wrong_world_size_is_refused(tmp_path):
    write_spec(tmp_path, **gloo())
    (rank,) = launch_by_variables(tmp_path, 3, [0])
    _, err = rank.communicate(timeout=600)
    assert rank.returncode == 2
    assert "/parallel: got tensor 2, 2 ranks in all" in err and "started 3 processes" in err


def test_a_rank_that_never_comes_is_named(tmp_path):
    write_spec(tmp_path, **gloo(backend={"name": "gloo", "timeout_seconds": 2}))
    (rank,) = launch_by_variables(tmp_path, 2, [0])
    _, err = rank.communicate(timeout=600)
    assert rank.returncode == 1
    assert "rank 1" in err


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_rank_and_world_size_come_from_mpirun(tmp_path):
    write_spec(tmp_path, **gloo())
    command = [*mpirun(2), BINARY, "run", "spec.json"]
    result = subprocess.run(command, cwd=tmp_path, env=CLEAN_ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert summary_of(run_folders(tmp_path)[0])["status"] == "completed"


def test_a_backend_that_is_not_built_says_what_is(tmp_path):
    write_spec(tmp_path, backend={"name": "udp"})
    result = run("run", "spec.json", cwd=tmp_path, expect=2)
    assert "udp" in result.err and "local" in result.err
