# SPDX-License-Identifier: Apache-2.0
"""libdroptest.so as Python functions: where it is, its types, and its errors (api/droptest.h)."""

from __future__ import annotations

import ctypes
import operator
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

VERSION = "0.1"  # of the interface: the library's file name ends with it
FILE_NAME = f"libdroptest.so.{VERSION}"

CLASSES = ("control", "tp_forward", "tp_backward", "dp_gradient", "parameter_gather", "pp_activation", "pp_gradient",
           "sequence_forward", "embedding_gradient", "sequence_backward", "outer", "tp_recomputation")  # fmt: skip
TYPES = ("float32", "float64", "uint64", "bfloat16", "float16", "int32", "int64", "uint8")
HALVES = ("reduce", "gather")
REDUCTIONS = ("sum", "max")
EVERY_DESTINATION = -1
STATUSES = ("ok", "config", "argument", "device", "forked", "mismatch", "internal")


class LibraryError(RuntimeError):
    """libdroptest.so is not there, or has another version; the message names the places."""


class NetworkError(RuntimeError):
    """The library refused a call. kind: one of STATUSES."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Link(ctypes.Structure):
    _fields_ = (("traffic_class", c_int32), ("half", c_int32), ("source", c_int32), ("destination", c_int32),
                ("group", c_uint32))  # fmt: skip


class Call(ctypes.Structure):
    _fields_ = (("operation", c_char_p), ("group", c_char_p), ("group_ranks", c_int32), ("type", c_int32),
                ("elements", c_uint64))  # fmt: skip


class Message(ctypes.Structure):
    """One message of a flow. message: messages before it; first_packet: index of its first packet; packets, lost: its
    data packets, and those that are missing."""

    _fields_ = (("message", c_uint64), ("first_packet", c_uint64), ("packets", c_uint64), ("lost", c_uint64))


class Memory(ctypes.Structure):
    _fields_ = (("on_device", c_int32), ("device", c_int32), ("stream", c_void_p))


class Counts(ctypes.Structure):
    """Counts of a flow. bytes, lost_bytes: of payload; lost: packets before any recovery; loss_rate: expected, in
    [0, 1]; z: deviation in standard deviations; digest: of all fates."""

    _fields_ = (("messages", c_uint64), ("packets", c_uint64), ("bytes", c_uint64), ("lost", c_uint64),
                ("lost_bytes", c_uint64), ("loss_rate", c_double), ("z", c_double), ("digest", c_uint64))  # fmt: skip


_FUNCTIONS = {
    "class_from_name": (c_char_p, POINTER(c_int32)),
    "network_create": (c_char_p, c_char_p, c_int32, c_int32, POINTER(c_void_p)),
    "network_set_step": (c_void_p, c_uint64),
    "network_digest": (c_void_p, POINTER(c_uint64)),
    "network_identity": (c_void_p, c_char_p, c_size_t, POINTER(c_size_t)),
    "network_check_peer": (c_void_p, c_int32, c_char_p),
    "network_can_lose": (c_void_p, c_int32, POINTER(c_int32)),
    "network_save_state": (c_void_p, c_char_p, c_size_t, POINTER(c_size_t)),
    "network_load_state": (c_void_p, c_char_p, c_size_t),
    "classify": (c_void_p, POINTER(Call), POINTER(c_int32)),
    "count_exempt": (c_void_p, POINTER(Call)),
    "flow_open": (c_void_p, POINTER(Link), c_int32, POINTER(c_void_p)),
    "flow_packets": (c_void_p, c_uint64, c_int32, POINTER(c_uint64)),
    "flow_next": (c_void_p, c_uint64, c_int32, c_void_p, c_size_t, POINTER(Message)),
    "flow_fates": (c_void_p, c_uint64, c_uint64, c_void_p, c_size_t),
    "flow_lose": (c_void_p, c_int32, c_void_p, c_uint64, c_int32, POINTER(Memory), POINTER(Message)),
    "flow_fill": (c_void_p, c_void_p, c_int32, c_void_p, c_uint64, c_int32, POINTER(Memory)),
    "group_open": (c_void_p, c_int32, c_uint32, POINTER(c_int32), c_int32, POINTER(c_void_p)),
    "group_reduce": (c_void_p, c_int32, c_void_p, c_uint64, c_int32, POINTER(Memory), POINTER(Message),
                     POINTER(c_uint64)),
    "group_finish_reduce": (c_void_p, c_uint64, c_void_p, c_uint64, c_uint64, POINTER(Memory)),
    "group_gather": (c_void_p, c_void_p, c_uint64, c_int32, POINTER(Memory), POINTER(Message)),
    "flow_counts": (c_void_p, POINTER(Counts)),
    "flow_verify": (c_void_p, c_uint64, c_uint64),
    "flow_report": (c_void_p, c_uint64, c_uint64, c_char_p, c_size_t, POINTER(c_size_t)),
    "network_statistics": (c_void_p, c_char_p, c_size_t, POINTER(c_size_t)),
    "network_write_statistics": (c_void_p, c_char_p),
}  # fmt: skip


def path() -> Path | str:
    """The library: DROPTEST_LIBRARY, else the one in this package, else the newest in the build folders of the source
    tree, else the system's. Raises: LibraryError that names the places."""
    if named := os.environ.get("DROPTEST_LIBRARY"):
        if not Path(named).is_file():
            raise LibraryError(f"DROPTEST_LIBRARY: got {named}, want the file {FILE_NAME}")
        return Path(named)
    package = Path(__file__).resolve().parent
    if (installed := package / "lib" / FILE_NAME).is_file():
        return installed
    built = list((package.parents[1] / "build").glob(f"*/api/{FILE_NAME}"))
    return max(built, key=lambda file: file.stat().st_mtime) if built else FILE_NAME


@cache
def _loaded() -> ctypes.CDLL:
    file = path()
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise LibraryError(
            f"{file}: {error}; `pip install .` in the root of the repository builds it, CMake's target droptest_c too; "
            "DROPTEST_LIBRARY names another place"
        ) from None
    library.droptest_last_error.restype = c_char_p
    library.droptest_network_destroy.argtypes = (c_void_p,)
    library.droptest_network_destroy.restype = None
    for name, arguments in _FUNCTIONS.items():
        function = getattr(library, f"droptest_{name}")
        function.argtypes = arguments
        function.restype = c_int32
    return library


def call(name: str, *arguments: Any) -> None:
    """droptest_<name>(arguments). Raises: NetworkError with the library's message; LibraryError."""
    library = _loaded()
    status = getattr(library, f"droptest_{name}")(*arguments)
    if status != 0:
        raise NetworkError(STATUSES[status], library.droptest_last_error().decode())


def opened(name: str, *arguments: Any) -> int:
    """The handle that droptest_<name>(arguments, &handle) makes."""
    handle = c_void_p()
    call(name, *arguments, byref(handle))
    return handle.value


def content(name: str, *arguments: Any) -> bytes:
    """The bytes of a function that writes at most as many as fit."""
    needed, buffer = c_size_t(), ctypes.create_string_buffer(0)
    while True:  # other threads may make it longer in between
        call(name, *arguments, buffer, len(buffer), byref(needed))
        if needed.value <= len(buffer):
            return buffer.raw[: needed.value]
        buffer = ctypes.create_string_buffer(needed.value)


def text(name: str, *arguments: Any) -> str:
    """The text of a function that writes JSON."""
    return content(name, *arguments).rstrip(b"\0").decode()


def destroy(network: int) -> None:
    _loaded().droptest_network_destroy(network)


def integer(value: Any, kind: Any, what: str) -> int:
    """The number as the library takes it: ctypes would cut the upper bits off. kind: c_int32, c_uint32 or c_uint64.
    Raises: NetworkError that names it."""
    bits = 8 * ctypes.sizeof(kind)
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if kind is c_int32 else (0, 2**bits - 1)
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise NetworkError("argument", f"{what}: got {value!r}, want an integer from {least} to {most}")
    return number


def number_of(name: str, known: tuple[str, ...], what: str) -> int:
    """The place of a name among the known ones. Raises: ValueError that lists them."""
    if name not in known:
        raise ValueError(f"{what}: got {name!r}, want one of {', '.join(known)}")
    return known.index(name)
