# SPDX-License-Identifier: Apache-2.0
"""Python's objects that PyTorch's threads use when a collective has ended: functions, which they call, and tensors.

A thread that needs the interpreter after its shutdown has begun ends the process with "terminate called without an
active exception", and one that needs it while another thread ends the process group waits for that one, which waits for
it. gloo's threads free such objects only after the future that the program waits for is complete. So a program that
ends right after its last collective waits for functions, and tensors are kept by views of them, whose reference is not
Python's: a thread needs the interpreter only where the last such reference ends (PyTorch from 2.10 on), or the tensor.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

_SECONDS = 10  # of the wait at the exit
_changed = threading.Condition()  # reentrant: an object may die in any statement
_called: set[weakref.ref] = set()  # functions that PyTorch has called, and not freed yet

_newest: deque[Any] = deque(maxlen=2)  # views: of as many as gloo's threads hold at once after the ends of their works
_recent: deque[weakref.ref] = deque(maxlen=64)


class _Function:
    """Is called at most once, and frees what the function holds before the call returns.

    PyTorch's thread, which frees the rest, may need the interpreter for it.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._functions = [function]

    def __call__(self, future: Any) -> Any:
        called = weakref.ref(self, _freed)
        with _changed:
            _called.add(called)
        try:
            return self._functions.pop()(future)
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


def keep(tensor: Any) -> None:
    """For a tensor in host memory that a collective is about to get."""
    if tensor.device.type == "cpu":
        _newest.append(tensor.view_as(tensor))
        _recent.append(weakref.ref(tensor))


@atexit.register
def _leave_the_threads_alone() -> None:
    with _changed:
        _changed.wait_for(lambda: not _called, timeout=_SECONDS)
    for reference in _recent:
        if (tensor := reference()) is not None:
            getattr(tensor, "_fix_weakref", lambda: None)()  # PyTorch wants it after the use of a weak reference
            for kept in (tensor, tensor.view_as(tensor)):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # for ever
    time.sleep(0.01)  # a thread that already waits for the interpreter gets it
