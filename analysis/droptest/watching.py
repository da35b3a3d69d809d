# SPDX-License-Identifier: Apache-2.0
"""Follows a run while another process writes its records (docs/watching.md)."""

from __future__ import annotations

import json
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from droptest.files import MissingRecord, RecordError, is_run, read_json

Line = dict[str, Any]

_COMPARED_BYTES = 1 << 14
_READ_BYTES = 1 << 20


@dataclass
class LinesTail:
    """The whole lines of a file that grows. A file that is replaced by one with the same beginning goes on after it.

    Another inode, or other bytes where the last ones were read, tell a replaced file: file systems give the number of a
    removed file to the next one. Of each line that was read, eight bytes stay in memory.
    """

    path: Path
    _known: array[int] = field(default_factory=lambda: array("q"))  # hashes of the lines that were read
    _place: int = 0  # of the next line in _known
    _rest: bytes = b""
    _offset: int = 0
    _last: bytes = b""
    _identity: int | None = None

    def new_lines(self) -> Iterator[Line]:
        """The lines that came since the last call, as they are read. Lines that are not JSON objects are left out."""
        try:
            with self.path.open("rb") as file:
                self._go_on_in(file)
                while data := file.read(_READ_BYTES):
                    self._offset += len(data)
                    self._last = (self._last + data)[-_COMPARED_BYTES:]
                    *whole, self._rest = (self._rest + data).split(b"\n")
                    for row in filter(self._is_new, whole):
                        if isinstance(value := _parsed(row), dict):
                            yield value
        except OSError:
            return
        del self._known[self._place :]  # a replaced file may be shorter

    def _go_on_in(self, file: BinaryIO) -> None:
        """Goes to the first byte that was not read, or to the beginning of a replaced file."""
        inode = self.path.stat().st_ino
        file.seek(self._offset - len(self._last))
        if inode != self._identity or file.read(len(self._last)) != self._last:
            self._identity, self._place, self._offset, self._rest, self._last = inode, 0, 0, b"", b""
            file.seek(0)

    def _is_new(self, row: bytes) -> bool:
        """Whether the next line of the file is none of those that were read before the file was replaced."""
        mark, place = hash(row), self._place
        self._place += 1
        if place < len(self._known):
            if self._known[place] == mark:
                return False
            del self._known[place:]
        self._known.append(mark)
        return True


def _parsed(row: bytes) -> Any:
    try:
        return json.loads(row)
    except (ValueError, RecursionError):
        return None


def _follow(
    folder: Path, on_event: Callable[[Line], object] | None, poll_seconds: float, patience_seconds: float | None
) -> Iterator[Line]:
    metrics, events = LinesTail(folder / "metrics.jsonl"), LinesTail(folder / "events.jsonl")
    last_news = time.monotonic()
    while True:
        ended = (folder / "summary.json").exists()  # before the lines: all lines of a run that has ended are there
        # Events come after the line that they are about, which is there once they are.
        news = deque(events.new_lines())
        if news:
            last_news = time.monotonic()
        for line in metrics.new_lines():
            yield line
            last_news = time.monotonic()
            while on_event is not None and news and news[0].get("step", 0) <= line.get("step", 0):
                on_event(news.popleft())
        for event in news if on_event is not None else ():
            on_event(event)
        if ended:
            return
        if patience_seconds is not None and time.monotonic() - last_news > patience_seconds:
            raise RecordError(f"{folder}: no line for {patience_seconds:g} s, and no summary.json; does the run go on?")
        time.sleep(poll_seconds)


def watch(
    run: str | Path,
    *,
    on_event: Callable[[Line], object] | None = None,
    poll_seconds: float = 0.5,
    patience_seconds: float | None = None,
) -> Iterator[Line]:
    """Yields the lines of a run's metrics.jsonl as they come, those that are there first; ends with the run.

    run: folder of the run, which another process trains, on this machine or another one. on_event: called with each
    line of events.jsonl, after the line of metrics that it is about. poll_seconds: between looks at the files.
    patience_seconds: the longest time without a line; None: no limit. A run that continues from a checkpoint yields
    again the steps that it trains again.
    Raises: MissingRecord for a folder that is not a run's, at the call; RecordError where the patience ends.
    """
    folder = Path(run)
    if not is_run(folder):
        raise MissingRecord(f"{folder}: not the folder of a run; want one with a spec.json, results/<name>/<run_id>")
    return _follow(folder, on_event, poll_seconds, patience_seconds)


def follow(
    run: str | Path,
    on_line: Callable[[Line], object] | None = None,
    on_event: Callable[[Line], object] | None = None,
    *,
    poll_seconds: float = 0.5,
    patience_seconds: float | None = None,
) -> Line:
    """Calls on_line and on_event for the lines of a run until it ends; returns its summary. Raises: as `watch`."""
    for line in watch(run, on_event=on_event, poll_seconds=poll_seconds, patience_seconds=patience_seconds):
        if on_line is not None:
            on_line(line)
    return read_json(Path(run) / "summary.json")
