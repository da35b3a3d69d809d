# SPDX-License-Identifier: Apache-2.0
"""Functions that PyTorch's threads call: the process does not end before they are freed."""

import os
import subprocess
import sys
import threading
import weakref

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from ranks import ANALYSIS, TESTS  # noqa: E402

from droptest.torch import callbacks  # noqa: E402


def test_a_function_is_called_with_the_future_and_then_freed():
    first = torch.futures.Future()
    second = callbacks.then(first, lambda future: future.value() + 1)
    assert not callbacks._called
    first.set_result(1)
    assert second.wait() == 2
    assert not callbacks._called


def test_the_exit_waits_for_a_function_that_was_called_and_for_no_other():
    called, waiting = (callbacks._Function(lambda future: future) for _ in range(2))
    assert called(7) == 7
    end = threading.Thread(target=callbacks._leave_the_threads_alone)
    end.start()
    assert callbacks._called and end.is_alive()
    del called
    end.join()
    assert waiting(8) == 8


def test_the_exit_waits_for_the_end_of_what_a_function_holds():
    """Such as a network, whose end calls the library. The last reference is the function's."""

    class Held:
        pass

    held, waited = Held(), []
    weakref.finalize(held, lambda: waited.append(len(callbacks._called)))
    first = torch.futures.Future()
    callbacks.then(first, lambda future, held=held: future.value())
    del held
    first.set_result(1)
    assert waited == [1] and not callbacks._called


def test_the_exit_does_not_wait_for_a_function_that_failed():
    def fails(_future):
        raise ValueError("no")

    function = callbacks._Function(fails)
    with pytest.raises(ValueError) as kept:
        function(7)
    assert kept.tb is not None and not callbacks._called


def test_a_scaling_that_failed_is_an_error_each_time():
    from droptest.torch.group import FinishedWork

    class Work:
        def wait(self):
            return True

        def is_completed(self):
            return True

    def finish():
        raise RuntimeError("closed")

    work = FinishedWork(Work(), finish, torch.device("cpu"))
    for ask in (work.wait, work.wait, work.is_completed):
        with pytest.raises(RuntimeError, match="closed"):
            ask()


@pytest.mark.parametrize("attempt", range(4))
def test_a_program_may_end_while_threads_still_add_up_its_tensors(tmp_path, attempt):
    """They would need the interpreter, which is gone by then, to free them."""
    environment = os.environ | {"PYTHONPATH": str(ANALYSIS), "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    words = [[sys.executable, TESTS / "exits.py", str(rank), tmp_path] for rank in range(2)]
    ranks = [subprocess.Popen(of, env=environment, stderr=subprocess.PIPE, text=True) for of in words]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
