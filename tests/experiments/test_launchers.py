# SPDX-License-Identifier: Apache-2.0
"""Runs whose ranks were started by hand, mpirun, srun and torchrun, over each rendezvous, give local's records."""

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from cli_harness import BINARY, CLEAN_ENVIRONMENT, losses_of, run, run_folders, summary_of, wait_until, write_spec
from holds import kill
from launchers import LAUNCHERS, Launch, missing, mpirun
from slurm_cluster import free_ports

RANKS = 4
TRAINING = {"steps": 4, "batch_sequences": 2, "learning_rate": 0.01}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _needs_gloo(tmp_path_factory):
    if "gloo (not built)" in run("info", cwd=tmp_path_factory.mktemp("info")).out:
        pytest.skip("the gloo backend was not built")


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    port = free_ports(1)
    folder = tmp_path_factory.mktemp("redis")
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    server = subprocess.Popen([*command, "--dir", folder], stdout=subprocess.DEVNULL)

    def answers():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(answers)
    yield port
    server.kill()
    server.wait()


@pytest.fixture(scope="module")
def local_run(tmp_path_factory):
    """The folder of the same run, trained by threads."""
    folder = tmp_path_factory.mktemp("local")
    write_spec(folder, parallel={"tensor": RANKS}, training=TRAINING)
    run("run", "spec.json", cwd=folder)
    return run_folders(folder)[0]


def digests_of(folder):
    classes = json.loads((folder / "loss_statistics.json").read_text())["classes"]
    return {name: (entry["digest"], entry["packets"], entry["lost"]) for name, entry in classes.items()}


def expect_same_records(folder, local):
    assert summary_of(folder)["status"] == "completed"
    assert digests_of(folder) == digests_of(local)
    assert losses_of(folder).keys() == losses_of(local).keys()
    for step, losses in losses_of(local).items():
        for ours, theirs in zip(losses_of(folder)[step], losses, strict=True):
            assert ours == theirs or ours == pytest.approx(theirs, abs=1e-5)  # the order of float32 sums


def environment_of(launcher, request):
    if missing(launcher):
        pytest.skip(missing(launcher))
    return request.getfixturevalue("slurm").environment if launcher == "srun" else {}


@pytest.mark.parametrize("rendezvous", ["tcp", "file", "redis"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launched_run_gives_the_records_of_local(launcher, rendezvous, request, tmp_path, local_run):
    environment = environment_of(launcher, request)
    backend = {"name": "gloo", "timeout_seconds": 30}
    if rendezvous == "file":
        backend["rendezvous"] = {"kind": "file"}
    elif rendezvous == "redis":
        backend["rendezvous"] = {"kind": "redis", "port": request.getfixturevalue("redis")}
    write_spec(tmp_path, parallel={"tensor": RANKS}, training=TRAINING, backend=backend)
    with Launch(
        *(launcher, "run", "spec.json"), cwd=tmp_path, ranks=RANKS, port=free_ports(2), environment=environment
    ) as launch:
        codes = launch.wait(60)
        assert set(codes) == {0}, launch.said()
    (folder,) = run_folders(tmp_path)
    assert not (folder / "rendezvous").exists()
    expect_same_records(folder, local_run)


def test_ranks_that_droptest_starts_meet_by_tcp_too(tmp_path, local_run):
    backend = {"name": "gloo", "timeout_seconds": 30, "rendezvous": {"kind": "tcp"}}
    write_spec(tmp_path, parallel={"tensor": RANKS}, training=TRAINING, backend=backend)
    # The ranks do not take the variables of a launch from this shell.
    run("run", "spec.json", cwd=tmp_path, environment={"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "none"})
    expect_same_records(run_folders(tmp_path)[0], local_run)


def batch_job(slurm, folder, *options):
    """Runs the batch script on spec.json with records in out/, returns the output of the job."""
    # The nodes of this Slurm are names of one machine, so the job cannot find the first one by its name.
    variables = {"DROPTEST": BINARY, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1))}
    environment = {**CLEAN_ENVIRONMENT, **slurm.environment, **variables}
    script = ROOT / "experiments" / "launch" / "slurm.sbatch"
    words = ["--nodes=2", "--ntasks-per-node=2", "--output=job.log", script, "spec.json", "--out", "out"]
    command = ["sbatch", "--parsable", *options, *words]
    submitted = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    wait_until(lambda: not slurm.ask("squeue", "-h", "-j", job, "-t", "pending,running,completing"))
    return (folder / "job.log").read_text()


def test_the_batch_script_runs_a_job(slurm, tmp_path, local_run):
    write_spec(tmp_path, parallel={"tensor": RANKS}, training=TRAINING, backend={"name": "gloo", "timeout_seconds": 30})
    log = batch_job(slurm, tmp_path)
    (folder,) = run_folders(tmp_path, out="out")
    assert f"the records are in {folder.relative_to(tmp_path)}" in log
    expect_same_records(folder, local_run)


def test_a_task_of_a_job_array_trains_the_run_of_its_number(slurm, tmp_path):
    sweep = {"cross": {"/network/loss/loss_rate": [0.1, 0.2, 0.3]}}
    backend = {"name": "gloo", "timeout_seconds": 30}
    write_spec(tmp_path, parallel={"tensor": RANKS}, training=TRAINING, backend=backend, sweep=sweep)
    log = batch_job(slurm, tmp_path, "--array=2")
    (folder,) = run_folders(tmp_path, out="out")
    assert summary_of(folder)["point"] == {"/network/loss/loss_rate": 0.2}, log


def test_a_port_that_is_taken_is_named_by_rank_zero(tmp_path):
    write_spec(tmp_path, backend={"name": "gloo", "timeout_seconds": 2})
    port = free_ports(1)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        with Launch("by_hand", "run", "spec.json", cwd=tmp_path, ranks=2, port=port) as launch:
            assert launch.wait(60) == [2, 1], launch.said()
            errors = launch.errors()
    assert f"rank 0 cannot listen at port {port} for 127.0.0.1: Address already in use" in errors[0]
    assert f"cannot reach the TCP store of rank 0 at 127.0.0.1:{port}" in errors[1] and "2000 ms" in errors[1]


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"RANK": "0"}, "WORLD_SIZE: is not set, although RANK is"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, "MASTER_PORT in the environment"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500x"},
            'MASTER_PORT: got "29500x", want an integer in [1, 65535]',
        ),
    ],
)
def test_variables_that_are_missing_or_wrong_are_named(variables, text, tmp_path):
    write_spec(tmp_path, backend={"name": "gloo"})
    result = run("run", "spec.json", cwd=tmp_path, expect=2, environment=variables)
    assert text in result.err and len(result.err.splitlines()) == 1


def test_half_a_launch_does_not_matter_to_threads(tmp_path):
    write_spec(tmp_path, training=TRAINING)
    run("run", "spec.json", cwd=tmp_path, environment={"RANK": "0"})
    assert summary_of(run_folders(tmp_path)[0])["status"] == "completed"


@pytest.mark.parametrize("name", ["nosuch0", "lo,eth0"])
def test_an_interface_that_is_not_there_is_named(tmp_path, name):
    write_spec(tmp_path, backend={"name": "gloo", "timeout_seconds": 30})
    with Launch(
        *("by_hand", "run", "spec.json"),
        cwd=tmp_path,
        ranks=2,
        port=free_ports(1),
        environment={"GLOO_SOCKET_IFNAME": name},
    ) as launch:
        assert launch.wait(60) == [2, 2], launch.said()
        error = f'environment: GLOO_SOCKET_IFNAME: got "{name}", want the name of one interface of this machine: '
        assert all(error in text for text in launch.errors().values()), launch.said()


@pytest.mark.skipif(missing("mpirun") != "", reason=missing("mpirun"))
def test_several_processes_of_a_run_of_threads_are_refused(tmp_path):
    write_spec(tmp_path)
    command = [*mpirun(2), BINARY, "run", "spec.json"]
    result = subprocess.run(command, cwd=tmp_path, env=CLEAN_ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 2
    assert "Open MPI started 2 processes" in result.stderr and "use gloo" in result.stderr
    assert not run_folders(tmp_path)


def test_a_rank_that_is_told_to_end_says_so_and_leaves_a_summary(tmp_path, holds):
    endless = {"steps": 1000000, "batch_sequences": 2, "learning_rate": 0.001}  # until it is told to end
    write_spec(tmp_path, training=endless, backend={"name": "gloo", "timeout_seconds": 30})
    holds.at("step-3")
    with Launch(
        *("by_hand", "run", "spec.json"), cwd=tmp_path, ranks=2, port=free_ports(1), environment=holds.environment
    ) as launch:
        holds.reached("step-3", 2)
        launch.processes[1].terminate()
        holds.release("step-3")
        assert launch.wait(60) == [1, 1], launch.said()
        errors = launch.errors()
    (folder,) = run_folders(tmp_path)
    for text in (*errors.values(), summary_of(folder)["error"]):
        assert "rank 1 failed: it was told to end (SIGTERM)" in text


def test_every_rank_refuses_a_finished_run_that_lacks_records(tmp_path):
    write_spec(tmp_path, parallel={"tensor": 2}, backend={"name": "gloo"}, record={"weights": "none"})
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    before = (folder / "summary.json").read_bytes()
    more = ["run", "spec.json", "--set", "/record/weights=final", "--set", "/backend/timeout_seconds=3600"]
    launch = Launch("by_hand", *more, cwd=tmp_path, ranks=2, port=free_ports(1))
    try:
        assert launch.wait(seconds=60) == [2, 2], launch.said()
        said = launch.errors()
    finally:
        launch.stop()
    assert "without records that the spec asks for: the final weights (/record/weights); --again" in said[0]
    assert "without records that the spec asks for, as rank 0 found; --again" in said[1]
    assert (folder / "summary.json").read_bytes() == before


@pytest.mark.parametrize(
    "words", [("run", "spec.json", "--set", "/record/weights=final"), ("resume", None, "--at", "4")]
)
def test_ranks_of_a_launcher_leave_a_result_until_that_of_the_repetition_is_there(tmp_path, holds, words):
    checkpoint = {"every_steps": 2, "keep": 100, "async": False}
    write_spec(
        tmp_path, backend={"name": "gloo", "timeout_seconds": 30}, record={"weights": "none"}, checkpoint=checkpoint
    )
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    words = [word or str(folder) for word in words]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    if "resume" in words:
        with Launch("by_hand", *words, cwd=tmp_path, ranks=2, port=free_ports(1)) as launch:
            assert launch.wait(60) == [2, 2], launch.said()
            assert all("finished; --again runs it once more from step 4" in text for text in launch.errors().values())
        assert not (folder / "again").exists()
    holds.at("step-7")
    again = (*words, "--again")
    with Launch("by_hand", *again, cwd=tmp_path, ranks=2, port=free_ports(1), environment=holds.environment) as launch:
        kill(*(pid for _, pid in holds.reached("step-7", 2)))
        holds.release("step-7")
    assert before == {path: path.read_bytes() for path in before}
    with Launch("by_hand", *again, cwd=tmp_path, ranks=2, port=free_ports(1)) as launch:
        assert launch.wait(60) == [0, 0], launch.said()
    assert summary_of(folder)["resumed_at"] == [4 if "resume" in words else 6]
    assert (folder / "weights.safetensors").exists() == ("run" in words)
    assert not (folder / "again").exists() and not (folder / "lock").exists()
