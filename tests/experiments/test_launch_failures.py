# SPDX-License-Identifier: Apache-2.0
"""A rank of a launched run is killed, stopped or cut off: all others end and name it, whoever launched them.

`pytest -rP` of this file prints how long that took."""

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cli_harness import metrics_of, run, run_folders, wait_until, write_spec
from launchers import LAUNCHERS, CutNetwork, Launch, missing
from slurm_cluster import free_ports

RANKS = 4
VICTIM = 2
HANG_SECONDS = 40  # nothing takes as long but a hang
# A killed rank must be found without the timeout, the others by it.
TIMEOUT_SECONDS = {"kill": 30, "stop": 3, "cut": 3}
CAUSES = {"kill": "rank 2 died or lost its connection", "stop": "no data from rank 2 for 3000 ms", "cut": "rank 2"}


class Outcome:
    """The outcome of a fault: seconds to the end of the last other rank, exit codes, errors; or why there was none."""

    def __init__(self, skipped=""):
        self.skipped = skipped
        self.seconds = self.codes = self.errors = self.said = None


def outcome_of_fault(launch, fault, run_root, network):
    def trains():
        return any((r / "metrics.jsonl").exists() and len(metrics_of(r)) > 1 for r in run_folders(run_root))

    outcome = Outcome()
    try:
        wait_until(lambda: trains() or all(process.poll() is not None for process in launch.processes))
        ranks = launch.rank_processes()
        assert sorted(ranks) == list(range(RANKS)), "not all ranks train"
        started = time.monotonic()
        if fault == "cut":
            network.cut()
        else:
            os.kill(ranks[VICTIM], {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault])
        wait_until(lambda: not set(launch.rank_processes()) - {VICTIM}, seconds=HANG_SECONDS)
        outcome.seconds = time.monotonic() - started
        if fault == "stop" and VICTIM in launch.rank_processes():
            os.kill(ranks[VICTIM], signal.SIGKILL)  # launchers wait for it
        outcome.codes = launch.wait(HANG_SECONDS)
        outcome.said = launch.said()
    except (AssertionError, subprocess.TimeoutExpired, ProcessLookupError) as error:
        outcome.said = f"{error}: {launch.said()}"
    outcome.errors = launch.errors()
    return outcome


def failed(launcher, fault, folder, environment, network):
    folder.mkdir()
    write_spec(
        folder,
        parallel={"tensor": RANKS},
        training={"steps": 1000000, "batch_sequences": 2, "learning_rate": 0.001},
        backend={"name": "gloo", "timeout_seconds": TIMEOUT_SECONDS[fault]},
    )
    environment = {**environment, **(network.environment(VICTIM) if network else {})}
    with Launch(
        *(launcher, "run", "spec.json"), cwd=folder, ranks=RANKS, port=free_ports(2), environment=environment
    ) as launch:
        return outcome_of_fault(launch, fault, folder, network)


def network_for(number):
    try:
        return CutNetwork(number)
    except (OSError, subprocess.CalledProcessError) as error:
        return Outcome(f"no network namespaces: {error}")


def outcome_of(launcher, fault, folder, environment):
    if missing(launcher):
        return Outcome(missing(launcher))
    if isinstance(environment, Outcome):
        return environment
    network = network_for(LAUNCHERS.index(launcher)) if fault == "cut" else None
    if isinstance(network, Outcome):
        return network
    try:
        return failed(launcher, fault, folder, environment, network)
    finally:
        if network is not None:
            network.close()


@pytest.fixture(scope="module")
def outcomes(slurm_or_reason, tmp_path_factory):
    """(Fault, launcher) -> outcome. Most of the time is spent waiting: three launches at once."""
    folder = tmp_path_factory.mktemp("failures")
    if "gloo (not built)" in run("info", cwd=folder).out:
        pytest.skip("the gloo backend was not built")
    slurm = Outcome(slurm_or_reason) if isinstance(slurm_or_reason, str) else slurm_or_reason.environment
    with ThreadPoolExecutor(3) as pool:
        found = {
            (fault, name): pool.submit(
                outcome_of, name, fault, folder / f"{fault}-{name}", slurm if name == "srun" else {}
            )
            for fault in TIMEOUT_SECONDS
            for name in LAUNCHERS
        }
    return {key: future.result() for key, future in found.items()}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("fault", TIMEOUT_SECONDS)
def test_all_other_ranks_end_and_name_the_rank_that_failed(fault, launcher, outcomes):
    outcome = outcomes[fault, launcher]
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.seconds is not None and outcome.codes is not None, outcome.said
    print(f"{fault} under {launcher}: timeout {TIMEOUT_SECONDS[fault]} s, others ended after {outcome.seconds:.2f} s")
    if fault == "kill":
        assert outcome.seconds < TIMEOUT_SECONDS[fault], outcome.said
    assert any(code != 0 for code in outcome.codes), outcome.said
    for rank in set(range(RANKS)) - {VICTIM}:
        text = outcome.errors[rank]
        assert CAUSES[fault] in text.split(f"rank {rank} of {RANKS}: ", 1)[-1], outcome.said
    if launcher == "by_hand":  # with the others, the launcher may be faster
        assert all(code != 0 for code in outcome.codes)
        if fault == "cut":
            assert "no data from rank" in outcome.errors[VICTIM], outcome.said
