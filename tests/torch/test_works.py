# SPDX-License-Identifier: Apache-2.0
"""The order of streams in which the results of a sum are scaled, on a device that only notes what it is asked."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from droptest.torch.group import FinishedWork  # noqa: E402


class Device:
    """Streams and events that note their uses."""

    def __init__(self):
        self.notes = []
        self.stream = "first"

    def current_stream(self, device):
        assert device == torch.device("cuda", 0)
        return self

    def record_event(self):
        self.notes.append(f"recorded on {self.stream}")
        return self

    def wait_event(self, event):
        assert event is self
        self.notes.append(f"{self.stream} waits")

    def synchronize(self):
        self.notes.append("the host waits")


class Work:
    """An inner work that has ended."""

    def wait(self):
        return True

    def is_completed(self):
        return True

    def is_success(self):
        return True


def test_streams_that_ask_later_wait_for_the_scaling_of_the_first_one(monkeypatch):
    device = Device()
    monkeypatch.setattr(torch.cuda, "current_stream", device.current_stream)
    work = FinishedWork(Work(), lambda: device.notes.append(f"scaled on {device.stream}"), torch.device("cuda", 0))
    assert work.wait()
    device.stream = "second"
    assert work.wait() and work.is_completed()
    assert device.notes == ["scaled on first", "recorded on first", "second waits", "second waits", "the host waits"]
