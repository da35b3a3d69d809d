# SPDX-License-Identifier: Apache-2.0
"""A network for programs with collectives of their own: fates of packets, fills in place, counts (docs/python.md)."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from droptest import library
from droptest.extras import needed_by
from droptest.json_values import UnusableValue, json_text
from droptest.library import Counts, Message, NetworkError
from droptest.program_run import ProgramRun, UnusableArgument

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CollectiveGroup", "Counts", "Flow", "Message", "Network", "NetworkError", "Statistics"]

_MOST_FATES = 2**33  # that the library draws at once
_EXIT_PRIORITY = 10  # of the finalizers of multiprocessing: any number, so that it runs


@dataclass(frozen=True)
class Statistics:
    """What a network did, in the format of loss_statistics.json. record: the whole object."""

    record: dict[str, Any]

    @classmethod
    def read(cls, folder: str | Path) -> Statistics:
        """Those that the ranks of a program wrote into the folder. Raises: OSError, ValueError."""
        return cls(json.loads((Path(folder) / "loss_statistics.json").read_text()))

    @property
    def classes(self) -> dict[str, Any]:
        """Counts by traffic class."""
        return self.record["classes"]

    @property
    def links(self) -> pd.DataFrame:
        """A row per link: class, half, source, destination (None: every receiver), packets, lost, realised_rate, z,
        mean_burst_packets, digest."""
        with needed_by("Statistics.links"):
            import pandas as pd

        return pd.DataFrame(self.record.get("links", []))

    @property
    def exempt(self) -> dict[str, dict[str, int]]:
        """Calls and bytes that could not lose packets, by reason."""
        return self.record["exempt"]

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks whose counts are not in the record: they still run, or have ended without writing."""
        return self.record["ranks"]["missing"]


class Network:
    """The network of one rank.

    source: an object {"network": SECTION, "seed": INTEGER, "rules": [..], "statistics": FOLDER} or the path of a file
        with it; None: the file that the environment variable DROPTEST_NETWORK names. The sections are those of specs.
    rank, world_size: of the program; where they are None, those of torch.distributed where it is initialised, else of
        the environment variables RANK and WORLD_SIZE, else 0 of 1.

    At the end of the process it writes its counts into the folder `statistics` of the source, where that is given.
    Threads: any may call it. Processes: a child by fork() must make its own. Raises: NetworkError, whose message begins
    with the rank and names the key; OSError for a file that cannot be read.
    """

    def __init__(
        self, source: Mapping[str, Any] | str | Path | None = None, *, rank: int | None = None,
        world_size: int | None = None,
    ) -> None:  # fmt: skip
        known_rank, known_size = _place()
        self.is_resumed = False  # by load_state_dict()
        self.rank = known_rank if rank is None else rank
        self.world_size = known_size if world_size is None else world_size
        text, where = _text_of(source)
        places = self._int32("rank", self.rank), self._int32("world_size", self.world_size)
        self._handle = self._checked(library.opened, "network_create", text.encode(), where.encode(), *places)
        self._at_exit = util.Finalize(self, _write_and_destroy, (self._handle,), exitpriority=_EXIT_PRIORITY)
        self._run = ProgramRun(text, self.rank)

    def _checked(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except NetworkError as error:
            raise NetworkError(error.kind, f"rank {self.rank} of {self.world_size}: {error}") from None

    def _int32(self, what: str, value: int) -> int:
        return self._checked(library.integer, value, ctypes.c_int32, what)

    def _uint32(self, what: str, value: int) -> int:
        return self._checked(library.integer, value, ctypes.c_uint32, what)

    def _uint64(self, what: str, value: int) -> int:
        return self._checked(library.integer, value, ctypes.c_uint64, what)

    def _open(self, function: Any, *arguments: Any) -> Any:
        if self._handle is None:
            raise NetworkError("argument", f"rank {self.rank} of {self.world_size}: network: got a closed one")
        return self._checked(function, *arguments)

    def _call(self, name: str, *arguments: Any) -> None:
        self._open(library.call, name, *arguments)

    def flow(
        self, traffic_class: str, source: int = 0, destination: int | None = None, *, half: str = "reduce",
        group: int = 0, counted: bool = True,
    ) -> Flow:  # fmt: skip
        """The flow of a link; destination None: every receiver. counted: whether this rank counts its packets."""
        to = library.EVERY_DESTINATION if destination is None else self._int32("destination", destination)
        link = library.Link(_class(traffic_class), library.number_of(half, library.HALVES, "half"),
                            self._int32("source", source), to, self._uint32("group", group))  # fmt: skip
        return Flow(self, self._open(library.opened, "flow_open", self._handle, byref(link), int(counted)))

    def group(self, traffic_class: str, members: Sequence[int], number: int = 0) -> CollectiveGroup:
        """The collectives of a class in a process group. members: world ranks in the order of the group, each once;
        number: 0 for the group of all ranks, another one for each other group of this rank, equal on all its members.
        """
        ranks = (ctypes.c_int32 * len(members))(*(self._int32("members", member) for member in members))
        handle = self._open(library.opened, "group_open", self._handle, _class(traffic_class),
                            self._uint32("number", number), ranks, len(members))  # fmt: skip
        return CollectiveGroup(self, handle)

    def classify(
        self, operation: str, elements: int, dtype: str = "float32", *, group_ranks: int, group: str = ""
    ) -> str:
        """The traffic class of a call by the rules; "control": it is exempt, and counted ("recv" is not: the sender of
        the message counts it). elements: of this rank."""
        found = ctypes.c_int32()
        self._call("classify", self._handle, byref(self._call_of(operation, elements, dtype, group_ranks, group)),
                   byref(found))  # fmt: skip
        return library.CLASSES[found.value]

    def count_exempt(
        self, operation: str, elements: int, dtype: str = "float32", *, group_ranks: int, group: str = ""
    ) -> None:
        """Counts a call that the caller cannot lose packets of."""
        self._call("count_exempt", self._handle, byref(self._call_of(operation, elements, dtype, group_ranks, group)))

    def _call_of(self, operation: str, elements: int, dtype: str, group_ranks: int, group: str) -> library.Call:
        return library.Call(operation.encode(), group.encode(), self._int32("group_ranks", group_ranks), _type(dtype),
                            self._uint64("elements", elements))  # fmt: skip

    def digest(self) -> int:
        """Equal on ranks with equal networks: of the library's version, the seed, the rules and the sections."""
        digest = ctypes.c_uint64()
        self._call("network_digest", self._handle, byref(digest))
        return digest.value

    def can_lose(self, traffic_class: str) -> bool:
        """Whether packets of the class can be lost on any link."""
        found = ctypes.c_int32()
        self._call("network_can_lose", self._handle, _class(traffic_class), byref(found))
        return bool(found.value)

    def identity(self) -> str:
        """What digest() is of, as JSON."""
        return self._open(library.text, "network_identity", self._handle)

    def check_peer(self, peer: int, identity: str) -> None:
        """Compares the network with that of another rank. identity: identity() there. Raises: NetworkError of kind
        "mismatch" with the first member that differs."""
        self._call("network_check_peer", self._handle, self._int32("peer", peer), identity.encode())

    def set_step(self, step: int) -> None:
        """Fates from now on are those of this training step: matters for losses that change over steps."""
        self._call("network_set_step", self._handle, self._uint64("step", step))

    def state_dict(self) -> dict[str, str]:
        """This rank's state, for a checkpoint: the packets that its links have used up, and its counts. Raises:
        NetworkError while results of a sum are not there yet."""
        return {"droptest": base64.b64encode(self._open(library.content, "network_save_state", self._handle)).decode()}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """Goes on after a checkpoint, with the fates that follow. state: of the same network, seed, rank and number of
        ranks. Raises: NetworkError, and keeps its own state."""
        try:
            content = base64.b64decode(state["droptest"], validate=True)
        except (KeyError, TypeError, ValueError):
            raise NetworkError("argument", f"rank {self.rank} of {self.world_size}: state: got something else than "
                               "state_dict() gives") from None  # fmt: skip
        self._call("network_load_state", self._handle, content, len(content))
        self.is_resumed = True

    @property
    def statistics_folder(self) -> Path | None:
        """The folder `statistics` of the source, where log() and finish() write; None: it names none."""
        return self._run.folder

    def statistics(self) -> Statistics:
        """The counts of this rank so far."""
        return Statistics(json.loads(self._open(library.text, "network_statistics", self._handle)))

    def write_statistics(self, folder: str | Path | None = None) -> None:
        """Writes this rank's counts, and loss_statistics.json of all ranks that have written theirs. None: into the
        folder of the source, where it names one. Every rank calls it; the last one completes the file."""
        self._call("network_write_statistics", self._handle, None if folder is None else os.fsencode(folder))

    def log(
        self, step: int, *, training_loss: float | None = None, validation_loss: float | None = None,
        tokens: int | None = None, **columns: float,
    ) -> None:  # fmt: skip
        """Appends a line to metrics.jsonl in the folder `statistics`: the losses of the training after this step, the
        tokens trained on so far, and further numbers by their names.

        Numbers may be numpy's, and tensors of one element. Those that are not finite become null. Rank 0 writes; the
        other ranks may call it too, and write nothing. The first line replaces the lines of an earlier program in that
        folder; after load_state_dict() it replaces those from its step on. Raises: NetworkError that names the
        argument, also for a step that is not greater than the last one; OSError.
        """
        losses = {"training_loss": training_loss, "validation_loss": validation_loss}
        self._record("log", lambda: self._run.log(self, step, losses, tokens, columns))

    def finish(
        self, *, step: int | None = None, training_loss: float | None = None, validation_loss: float | None = None,
        tokens: int | None = None, validation_tokens: int = 0, settings: Mapping[str, Any] | None = None,
        seed: int | None = None, seeds: Mapping[str, int] | None = None, unit: str | None = None, **columns: float,
    ) -> None:  # fmt: skip
        """Makes the program a run that has ended: writes spec.json and summary.json into the folder `statistics`
        (docs/records.md). Losses and columns make one more line, of `step`, else of the last step that was logged.

        validation_tokens: of one validation. settings: hyperparameters of the program, by which runs are told apart:
        numbers, texts, booleans. seed: of the weights and the data; seeds: {"weights": 1, "data": 2}. Without them they
        are those of the environment variables DROPTEST_WEIGHTS_SEED and DROPTEST_DATA_SEED, else the network's. unit:
        of the losses, default "nats per token". Rank 0 writes. Under `droptest sweep`, which writes these files itself,
        only the line is written. Raises: NetworkError that names the argument; OSError.
        """
        losses = {"training_loss": training_loss, "validation_loss": validation_loss}
        self._record("finish", lambda: self._run.finish(
            self, step, losses, tokens, columns, validation_tokens=validation_tokens, settings=settings, seed=seed,
            seeds=seeds, unit=unit))  # fmt: skip

    def _record(self, name: str, write: Callable[[], None]) -> None:
        self._open(lambda: None)
        try:
            write()
        except UnusableArgument as error:
            where = f"rank {self.rank} of {self.world_size}"
            raise NetworkError("argument", f"{where}: {name}: {error}") from None

    def close(self) -> None:
        """Writes the counts, where the source names a folder, and frees the network. Its flows end with it."""
        if self._handle is not None:
            self.write_statistics()
            self._run.release()
            self._at_exit.cancel()
            library.destroy(self._handle)
            self._handle = None

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Flow:
    """A link as a sequence of packets, made by Network.flow()."""

    def __init__(self, network: Network, handle: int) -> None:
        self.network = network
        self._handle = handle

    def packets(self, elements: int, dtype: str = "float32") -> int:
        """Packets of a message."""
        count = ctypes.c_uint64()
        self.network._call("flow_packets", self._handle, self.network._uint64("elements", elements), _type(dtype),
                           byref(count))  # fmt: skip
        return count.value

    def next(self, elements: int, dtype: str = "float32") -> np.ndarray:
        """Uses up the packets of the next message. Shapes: (packets,), bool: True for each that is missing."""
        packets = self.packets(elements, dtype)
        words = np.zeros((packets + 63) // 64, np.uint64)
        self.network._call("flow_next", self._handle, elements, _type(dtype), words.ctypes.data, words.size, None)
        return _bools(words, packets)

    def fates(self, first: int, count: int) -> np.ndarray:
        """Which of the packets first to first + count - 1 of this flow are lost. first: counted from the flow's first
        packet, or Message.first_packet, which has the number of the group in its upper bits. Shapes: (count,), bool. It
        uses up nothing."""
        first, count = self.network._uint64("first", first), self.network._uint64("count", count)
        if count > _MOST_FATES:
            raise NetworkError("argument", f"count: got {count}, want at most {_MOST_FATES}")
        words = np.zeros((count + 63) // 64, np.uint64)
        self.network._call("flow_fates", self._handle, first, count, words.ctypes.data, words.size)
        return _bools(words, count)

    def lose(self, array: np.ndarray, reduction: str = "sum") -> Message:
        """Uses up the packets of the next message, and puts the neutral value of the reduction ("sum": zero, "max": the
        lowest value) into the lost elements of the array, in place. The array is contiguous."""
        message = Message()
        self.network._call("flow_lose", self._handle, _reduction(reduction), *_elements(array), None, byref(message))
        return message

    def lose_at(self, address: int, elements: int, dtype: str, memory: library.Memory | None = None) -> Message:
        """The same for a sum's elements at an address; memory: of a CUDA device, None for host memory."""
        message = Message()
        self.network._call("flow_lose", self._handle, _reduction("sum"), address,
                           self.network._uint64("elements", elements), _type(dtype), _reference(memory),
                           byref(message))  # fmt: skip
        return message

    def counts(self) -> Counts:
        """Counts so far; zero where another rank counts the link."""
        counts = Counts()
        self.network._call("flow_counts", self._handle, byref(counts))
        return counts

    def verify(self, packets: int, digest: int) -> None:
        """Draws the first `packets` fates again, and compares their digest with that of another rank or run. Raises:
        NetworkError of kind "mismatch" where they differ."""
        self.network._call("flow_verify", self._handle, self.network._uint64("packets", packets),
                           self.network._uint64("digest", digest))  # fmt: skip

    def report(self, first: int, count: int) -> dict[str, Any]:
        """What `droptest fates --format json` says of these packets. first: as of fates()."""
        packets = self.network._uint64("first", first), self.network._uint64("count", count)
        return json.loads(self.network._open(library.text, "flow_report", self._handle, *packets))


class CollectiveGroup:
    """The collectives of a traffic class in a process group, made by Network.group(). Addresses are those of
    contiguous elements; memory: of a CUDA device, None for host memory. All members make the same calls in one
    order."""

    def __init__(self, network: Network, handle: int) -> None:
        self.network = network
        self._handle = handle

    def reduce(
        self, address: int, elements: int, dtype: str, reduction: str = "sum", memory: library.Memory | None = None
    ) -> int:
        """Before an inner all-reduce or reduce-scatter: fills this rank's lost packets in place. Returns the number of
        the sum for finish_reduce(), which must follow, in any order of sums; 0: it does not follow."""
        unfinished = ctypes.c_uint64()
        self.network._call("group_reduce", self._handle, _reduction(reduction), address,
                           self.network._uint64("elements", elements), _type(dtype), _reference(memory), None,
                           byref(unfinished))  # fmt: skip
        return unfinished.value

    def finish_reduce(
        self, number: int, address: int, first_element: int, elements: int, memory: library.Memory | None = None
    ) -> None:
        """After the sum of that number: scales the results, which are elements first_element onwards of the message."""
        uint64 = self.network._uint64
        self.network._call("group_finish_reduce", self._handle, uint64("number", number), address,
                           uint64("first_element", first_element), uint64("elements", elements),
                           _reference(memory))  # fmt: skip

    def gather(self, address: int, elements: int, dtype: str, memory: library.Memory | None = None) -> None:
        """Before an inner all-gather: puts zeros into this rank's lost packets, in place."""
        self.network._call("group_gather", self._handle, address, self.network._uint64("elements", elements),
                           _type(dtype), _reference(memory), None)  # fmt: skip


def _write_and_destroy(handle: int) -> None:
    try:
        library.call("network_write_statistics", handle, None)
    except NetworkError as error:
        print(f"droptest: {error}", file=sys.stderr)
    library.destroy(handle)


def _place() -> tuple[int, int]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def _text_of(source: Mapping[str, Any] | str | Path | None) -> tuple[str, str]:
    """The JSON text, and its name for messages."""
    if isinstance(source, Mapping):
        try:
            return json_text(source), "network"
        except UnusableValue as error:
            raise NetworkError("config", f"network: {error}") from None
    if source is None:
        source = os.environ.get("DROPTEST_NETWORK")
        if source is None:
            raise NetworkError("config", "DROPTEST_NETWORK: is not set, want the name of a file with a network in JSON")
    return Path(source).read_text(), str(source)


def _class(name: str) -> int:
    return library.number_of(name, library.CLASSES, "traffic_class")


def _type(dtype: str) -> int:
    return library.number_of(dtype, library.TYPES, "dtype")


def _reduction(name: str) -> int:
    return library.number_of(name, library.REDUCTIONS, "reduction")


def _reference(memory: library.Memory | None) -> Any:
    return None if memory is None else byref(memory)


def _elements(array: np.ndarray) -> tuple[int, int, int]:
    if not isinstance(array, np.ndarray):
        raise ValueError(f"array: got {type(array).__name__}, want a numpy.ndarray, whose elements are filled in place")
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise ValueError("array: got one that is not contiguous or not writable, want elements that can be filled")
    return array.ctypes.data, array.size, _type(array.dtype.name)


def _bools(words: np.ndarray, packets: int) -> np.ndarray:
    return np.unpackbits(words.view(np.uint8), bitorder="little", count=packets).astype(bool)
