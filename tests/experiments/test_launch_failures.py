# SPDX-License-Identifier: Apache-2.0
"""A rank of a launched run is killed, stopped or cut off: all others end and name it, whoever launched them.

`pytest -rP` of this file prints how long that took."""

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cli_harness import run, wait_until, write_spec
from holds import Holds, kill, stop
from launchers import LAUNCHERS, CutNetwork, Launch, missing
from slurm_cluster import free_ports

RANKS = 4
VICTIM = 2
HANG_SECONDS = 120  # nothing takes as long but a hang
# A killed rank must be found without the timeout, the others by it: waiting for the first would be a hang.
TIMEOUT_SECONDS = {"kill": 3600, "stop": 10, "cut": 10}
CAUSES = {"kill": "rank 2 died or lost its connection", "stop": "no data from rank 2 for 10000 ms", "cut": "rank 2"}
POINT = "step-3"


class Outcome:
    """The outcome of a fault: seconds to the end of the last other rank, exit codes, errors; or why there was none."""

    def __init__(self, skipped=""):
        self.skipped = skipped
        self.seconds = self.codes = self.errors = self.said = None


def outcome_of_fault(launch, fault, holds, network):
    outcome = Outcome()
    try:
        ranks = dict(holds.reached(POINT, RANKS))
        if launch.launcher != "by_hand":
            stop(launch.processes[0].pid)  # else it could end the others before they have named the rank
        started = time.monotonic()
        if fault == "cut":
            network.cut()
        else:
            {"kill": kill, "stop": stop}[fault](ranks[VICTIM])
        holds.release(POINT)
        wait_until(lambda: not set(launch.rank_processes()) - {VICTIM}, seconds=HANG_SECONDS)
        outcome.seconds = time.monotonic() - started
        if fault == "stop" and VICTIM in launch.rank_processes():
            kill(ranks[VICTIM])  # launchers wait for it
        if launch.launcher != "by_hand":
            os.kill(launch.processes[0].pid, signal.SIGCONT)
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
        backend={"name": "gloo", "timeout_seconds": TIMEOUT_SECONDS[fault]},
    )
    holds = Holds(folder / "holds")
    holds.at(POINT)
    environment = {**environment, **holds.environment, **(network.environment(VICTIM) if network else {})}
    with Launch(
        *(launcher, "run", "spec.json"), cwd=folder, ranks=RANKS, port=free_ports(2), environment=environment
    ) as launch:
        return outcome_of_fault(launch, fault, holds, network)


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
    """(Fault, launcher) -> outcome. Most of the time is spent waiting: six launches at once."""
    folder = tmp_path_factory.mktemp("failures")
    if "gloo (not built)" in run("info", cwd=folder).out:
        pytest.skip("the gloo backend was not built")
    slurm = Outcome(slurm_or_reason) if isinstance(slurm_or_reason, str) else slurm_or_reason.environment
    with ThreadPoolExecutor(6) as pool:
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
    assert any(code != 0 for code in outcome.codes), outcome.said
    for rank in set(range(RANKS)) - {VICTIM}:
        text = outcome.errors[rank]
        assert CAUSES[fault] in text.split(f"rank {rank} of {RANKS}: ", 1)[-1], outcome.said
    if launcher == "by_hand":
        assert all(code != 0 for code in outcome.codes)
        if fault == "cut":
            assert "no data from rank" in outcome.errors[VICTIM], outcome.said
