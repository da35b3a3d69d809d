# SPDX-License-Identifier: Apache-2.0
"""Python functions that PyTorch's threads call when a collective has ended.

A thread that needs the interpreter after its shutdown has begun ends the process with "terminate called without an
active exception". gloo's threads free such a function only after the future that the program waits for is complete, so
a program that ends right after its last collective must wait for them.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from typing import Any

_SECONDS = 10  # of the wait at the exit
_changed = threading.Condition()  # reentrant: an object may die in any statement
_called: set[weakref.ref] = set()  # functions that PyTorch has called, and not freed yet


class _Function:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, future: Any) -> Any:
        called = weakref.ref(self, _freed)
        with _changed:
            _called.add(called)
        try:
            return self._function(future)
        except BaseException:
            _freed(called)  # the traceback, which others may keep, holds this object
            raise


def then(future: Any, function: Callable[[Any], Any]) -> Any:
    """future.then(function), after which the interpreter may shut down once the function has been called."""
    return future.then(_Function(function))


def _freed(reference: weakref.ref) -> None:
    with _changed:
        _called.discard(reference)
        _changed.notify_all()


@atexit.register
def _wait_until_all_are_freed() -> None:
    with _changed:
        _changed.wait_for(lambda: not _called, timeout=_SECONDS)
