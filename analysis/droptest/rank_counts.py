# SPDX-License-Identifier: Apache-2.0
"""The counts that the ranks of another program wrote into ranks/<rank>.json, added up (docs/records.md)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from droptest.json_values import object_of
from droptest.library import CLASSES as ALL_CLASSES
from droptest.library import HALVES

SCHEMA_VERSION = 2
CLASSES = ALL_CLASSES[1:]  # the class control loses nothing
EVERY_DESTINATION = 0xFFFF
SAMPLE_WORDS = 15  # of sampled results, which programs do not have
TEXTS = ("loss", "fill", "configured_mean_burst_packets")  # of a half, which the network says and not the counts

Link = tuple[int, int, int]  # half, source, destination


class MalformedCounts(ValueError):
    """A file that no rank has written."""


class OtherVersion(MalformedCounts):
    """A file of another version of droptest."""


@dataclass
class _Counts:
    """As comm::LossCounts, without the gaps, of which no record tells."""

    numbers: list[int] = field(default_factory=lambda: [0] * 12)
    expected_lost: float = 0.0
    variance: float = 0.0
    bursts: dict[int, int] = field(default_factory=dict)

    messages = property(lambda self: self.numbers[0])
    packets = property(lambda self: self.numbers[1])
    lost = property(lambda self: self.numbers[3])
    timed_messages = property(lambda self: self.numbers[10])

    def add(self, other: _Counts) -> None:
        self.numbers = [a + b for a, b in zip(self.numbers, other.numbers, strict=True)]
        self.expected_lost += other.expected_lost
        self.variance += other.variance
        for length, count in other.bursts.items():
            self.bursts[length] = self.bursts.get(length, 0) + count

    @property
    def mean_burst(self) -> float:
        number = sum(self.bursts.values())
        return sum(length * count for length, count in self.bursts.items()) / number if number else 0.0

    @property
    def z(self) -> float | None:
        if self.packets == 0 or math.isnan(self.variance):
            return None
        deviation = self.lost - self.expected_lost
        if self.variance > 0:
            return deviation / math.sqrt(self.variance)
        return 0.0 if abs(deviation) < 0.5 else None  # an infinite one is null, too

    def record(self) -> dict[str, Any]:
        rate: Callable[[float], float | None] = lambda of: of / self.packets if self.packets else None  # noqa: E731
        return {
            **dict(zip(("messages", "packets", "bytes", "lost", "lost_bytes"), self.numbers[:5], strict=True)),
            "configured_rate": rate(self.expected_lost), "realised_rate": rate(self.lost), "z": self.z,
            "mean_burst_packets": self.mean_burst,
        }  # fmt: skip


@dataclass
class _OfClass:
    """The sums of one class over ranks."""

    collectives: int = 0
    untouched: int = 0
    open_calls: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)  # group -> total, bits of touched
    links: dict[Link, _Counts] = field(default_factory=dict)
    digests: dict[Link, int] = field(default_factory=dict)
    halves: tuple[_Counts, _Counts] = field(default_factory=lambda: (_Counts(), _Counts()))


class _Words:
    """The words of a rank, in order."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words = words
        self._next = 0

    def take(self) -> int:
        if self._next >= len(self._words):
            raise MalformedCounts("the counts end early")
        self._next += 1
        return self._words[self._next - 1]

    def several(self, count: int) -> list[int]:
        if count > len(self._words) - self._next:
            raise MalformedCounts("the counts end early")
        self._next += count
        return list(self._words[self._next - count : self._next])

    def double(self) -> float:
        return struct.unpack("<d", struct.pack("<Q", self.take()))[0]

    def counts(self) -> _Counts:
        counts = _Counts(self.several(12), self.double(), self.double())
        bursts = self.several(2 * self.take())
        counts.bursts = dict(zip(bursts[::2], bursts[1::2], strict=True))
        self.several(self.take())  # gaps
        self.several(2 * self.take())  # stretches of neighbouring packets
        return counts

    @property
    def at_end(self) -> bool:
        return self._next == len(self._words)


def _with_link_digest(digest: int, following: int) -> int:
    turned = (digest << 23 | digest >> 41) & 0xFFFFFFFFFFFFFFFF
    return (turned * 0x9E3779B97F4A7C15 + following) & 0xFFFFFFFFFFFFFFFF


def _add_class(words: _Words, merged: _OfClass) -> None:
    words.several(SAMPLE_WORDS)
    merged.collectives += words.take()
    merged.untouched += words.take()
    for _ in range(words.take()):
        group, total = (words.take(), words.take()), words.take()
        touched = sum(word << (64 * place) for place, word in enumerate(words.several((total + 63) // 64)))
        before = merged.open_calls.get(group, (0, 0))
        merged.open_calls[group] = (max(before[0], total), before[1] | touched)
    for _ in range(words.take()):
        link = (words.take(), words.take(), words.take())
        merged.digests[link] = _with_link_digest(merged.digests.get(link, 0), words.take())
        words.several(2)  # what is expected, which its counts have again
        merged.links.setdefault(link, _Counts()).add(words.counts())
    for half in merged.halves:
        half.add(words.counts())


def check(record: Any, rank: int) -> None:
    """Raises: OtherVersion; MalformedCounts where the content of a file is not that of this rank."""
    record = object_of(record)
    if type(record.get("schema_version")) is int and record["schema_version"] != SCHEMA_VERSION:
        raise OtherVersion
    for key in ("rank", "world_size", "seed"):
        if type(record.get(key)) is not int:
            raise MalformedCounts(f"/{key}: got {record.get(key)!r}, want an integer")
    if record["rank"] != rank or rank >= record["world_size"]:
        raise MalformedCounts(
            f"/rank: got {record['rank']} of {record['world_size']}, want {rank}, as the file is named"
        )
    if not isinstance(record.get("network", ""), str):
        raise MalformedCounts(f"/network: got {record['network']!r}, want a digest")
    for reason, counts in object_of(record.get("exempt")).items():
        if any(type(object_of(counts).get(key)) is not int for key in ("calls", "bytes")):
            raise MalformedCounts(f"/exempt/{reason}: want an object with the integers calls and bytes")
    words = record.get("words")
    if not isinstance(words, list) or not all(type(word) is int and 0 <= word < 1 << 64 for word in words):
        raise MalformedCounts("/words: want a list of 64-bit numbers")
    reader = _Words(words)
    for _ in CLASSES:
        _add_class(reader, _OfClass())
    if not reader.at_end:
        raise MalformedCounts("/words: there are more of them than counts")


def program_of(rank: Mapping[str, Any]) -> tuple[int, int, str]:
    """World size, seed and digest of the network, which the files of one program have in common. Digest "": there is
    none, as in files of earlier versions."""
    return rank["world_size"], rank["seed"], rank.get("network", "")


def merged(ranks: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> dict[str, Any]:
    """loss_statistics.json of these ranks, which check() has passed, of one program: a record with the members that the
    library gives it.

    known: a loss_statistics.json of some of these ranks, of which come the network and its texts; without it the
        losses, fills and the theory of bursts are null, since the counts do not have them.
    """
    classes = {name: _OfClass() for name in CLASSES}
    for rank in sorted(ranks, key=lambda one: one["rank"]):
        words = _Words(rank["words"])
        for of_class in classes.values():
            _add_class(words, of_class)
    world_size = ranks[0]["world_size"]
    there = {rank["rank"] for rank in ranks}
    _, seed, digest = program_of(ranks[0])
    network = object_of(known.get("network")) or {"seed": seed, "digest": digest, "classes": {}}
    known_classes = object_of(known.get("classes"))
    found = {name: of_class for name, of_class in classes.items() if of_class.collectives or of_class.open_calls}
    record: dict[str, Any] = {
        "schema_version": 1,
        "classes": {n: _class_record(c, object_of(known_classes.get(n))) for n, c in sorted(found.items())},
    }
    links = [entry for name, of_class in found.items() for entry in _link_records(name, of_class)]
    if links:
        record["links"] = links
    exempt: dict[str, dict[str, int]] = {}
    for rank in ranks:
        for reason, counts in object_of(rank.get("exempt")).items():
            of_reason = exempt.setdefault(reason, {"calls": 0, "bytes": 0})
            for key in of_reason:
                of_reason[key] += object_of(counts).get(key, 0)
    missing = [rank for rank in range(world_size) if rank not in there]
    return record | {"network": network, "exempt": exempt, "ranks": {"world_size": world_size, "missing": missing}}


def is_same(record: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two records of one program have the counts of the same ranks at the same time."""
    return all(_of_time(record, name) == _of_time(other, name) for name in ("ranks", "exempt", "classes"))


def _of_time(record: Mapping[str, Any], name: str) -> Any:
    if name != "classes":
        return object_of(record.get(name))
    return {name: [object_of(of).get(key) for key in ("messages", "digest")]
            for name, of in object_of(record.get("classes")).items()}  # fmt: skip


def _link_records(name: str, of_class: _OfClass) -> Iterator[dict[str, Any]]:
    for (half, source, destination), counts in sorted(of_class.links.items()):
        numbers = counts.record()
        yield {
            "class": name, "half": HALVES[half], "source": source,
            "destination": None if destination == EVERY_DESTINATION else destination,
            **{key: numbers[key] for key in ("packets", "lost", "realised_rate", "z", "mean_burst_packets")},
            "digest": f"{of_class.digests[half, source, destination]:016x}",
        }  # fmt: skip


def _class_record(of_class: _OfClass, known: Mapping[str, Any]) -> dict[str, Any]:
    digest = 0
    for link, counts in sorted(of_class.links.items()):
        half = of_class.halves[link[0]]
        half.expected_lost += counts.expected_lost
        half.variance += counts.variance
        digest = _with_link_digest(digest, of_class.digests[link])
    calls = of_class.collectives + sum(total for total, _ in of_class.open_calls.values())
    untouched = of_class.untouched
    untouched += sum(total - touched.bit_count() for total, touched in of_class.open_calls.values())
    total = _Counts()
    for half in of_class.halves:
        total.add(half)
    if all(half.packets for half in of_class.halves) and total.timed_messages:
        total.variance = math.nan  # halves that see the same states are correlated
    known_halves = object_of(known.get("halves"))
    halves = {name: _half_record(half, object_of(known_halves.get(name)))
              for name, half in zip(HALVES, of_class.halves, strict=True)}  # fmt: skip
    return total.record() | {
        "configured_mean_burst_packets": _configured_burst(of_class.halves, halves), "collectives": calls,
        "untouched_share": untouched / calls, "sampled_calls": 0,
        **dict.fromkeys(("nmse", "cosine", "divergence_max", "divergence_rms")), "digest": f"{digest:016x}",
        "path": known.get("path", "contribution"), "halves": halves,
    }  # fmt: skip


def _configured_burst(halves: Sequence[_Counts], records: Mapping[str, dict[str, Any]]) -> float | None:
    """Packets lost in theory per burst in theory; null where the theory of a half is not known."""
    lost = bursts = 0.0
    for half, record in zip(halves, records.values(), strict=True):
        mean = record["configured_mean_burst_packets"]
        if half.expected_lost > 0 and mean is None:
            return None
        if half.expected_lost > 0 and mean > 0:
            lost, bursts = lost + half.expected_lost, bursts + half.expected_lost / mean
    return lost / bursts if bursts else 0.0


def _half_record(half: _Counts, known: Mapping[str, Any]) -> dict[str, Any]:
    record = half.record() | {key: known.get(key) for key in TEXTS}
    number = sum(half.bursts.values())
    entries = {entry["length"]: entry for entry in known.get("burst_histogram", ())}
    known_number = sum(entry["count"] for entry in entries.values())
    record["burst_histogram"] = []
    for length, count in sorted(half.bursts.items()):
        expected = object_of(entries.get(length)).get("expected")
        scaled = None if expected is None else expected * number / known_number
        record["burst_histogram"].append({"length": length, "count": count, "expected": scaled})
    repaired = dict(zip(("repaired", "residual", "residual_bytes", "resent", "resend_rounds"), half.numbers[5:10],
                        strict=True))  # fmt: skip
    policy = object_of(known.get("recovery")).get("policy")
    if policy is not None or repaired["repaired"] or repaired["resent"]:
        record["recovery"] = {"policy": policy, **repaired}
    return record
