"""Writes and reads the topics in the document of a snapshot. Reading reports every fault."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Final

from pybroker.client.ranges.model import DIGEST_END, Counted
from pybroker.model import NO_EPOCH, NO_OFFSET, topic_name_fault
from pybroker.spark.cuts import PartitionCut, TopicCut

OFFSET_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,9}")
KEYS: Final = frozenset(
    {"version", "id", "clusterId", "createdAtMs", "isolation", "bootstrap", "parent", "topics"}
)
_TOPIC_KEYS: Final = frozenset({"topicId", "partitions"})
_CUT_KEYS: Final = frozenset({"start", "end", "logStart", "leaderEpoch"})
_COUNTS: Final = "counts"


class DocumentReader:
    """Reads values from JSON objects, and collects all faults. For a wrong value, `text` returns ""
    and `number` returns 0."""

    def __init__(self, *, may_have_counts: bool) -> None:
        self.faults: list[str] = []
        self._cut_keys = _CUT_KEYS | {_COUNTS} if may_have_counts else _CUT_KEYS

    def known(self, row: Mapping[str, object], keys: frozenset[str], where: str) -> None:
        unknown = row.keys() - keys
        if unknown:
            self.faults.append(f"unknown key {', '.join(sorted(unknown))} in {where}")

    def text(
        self, row: Mapping[str, object], key: str, where: str, *, may_be_empty: bool = False
    ) -> str:
        value = row.get(key, "" if may_be_empty else None)
        if isinstance(value, str) and (value or may_be_empty):
            return value
        self.faults.append(f"{key} of {where} is {_shown(value)}, expected text")
        return ""

    def number(self, row: Mapping[str, object], key: str, where: str, low: int, high: int) -> int:
        value = row.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.faults.append(
            f"{key} of {where} is {_shown(value)}, expected a whole number from {low} to {high}"
        )
        return 0

    def rows(
        self, row: Mapping[str, object], key: str, where: str
    ) -> Iterator[tuple[str, Mapping[str, object]]]:
        """Yield the members of the object `row[key]`. Add a fault if the object is missing or
        empty, or if a value is no object."""
        value = row.get(key)
        if not isinstance(value, dict) or not value:
            self.faults.append(f"{key} of {where} is {_shown(value)}, expected an object with keys")
            return
        for name, inner in value.items():
            if isinstance(inner, dict):
                yield name, inner
            else:
                self.faults.append(f"{name} of {key} is {_shown(inner)}, expected an object")

    def topics(self, document: Mapping[str, object]) -> dict[str, TopicCut]:
        found = {}
        for topic, row in self.rows(document, "topics", "the snapshot"):
            fault = topic_name_fault(topic)
            if fault is not None:
                self.faults.append(fault)
            self.known(row, _TOPIC_KEYS, f"topic {topic}")
            topic_id = self.text(row, "topicId", f"topic {topic}", may_be_empty=True)
            if topic_id and not _is_uuid(topic_id):
                self.faults.append(f"topicId of topic {topic} is {topic_id!r}, expected a UUID")
            cuts = dict(self.partitions(topic, row))
            found[topic] = TopicCut(topic_id, dict(sorted(cuts.items())))
        return dict(sorted(found.items()))

    def partitions(
        self, topic: str, row: Mapping[str, object]
    ) -> Iterator[tuple[int, PartitionCut]]:
        for name, inner in self.rows(row, "partitions", f"topic {topic}"):
            if not _NUMBER.fullmatch(name) or int(name) > INT_MAX:
                self.faults.append(f"partition {name!r} of topic {topic} is not a number")
                continue
            where = f"{topic}-{name}"
            self.known(inner, self._cut_keys, where)
            start = self.number(inner, "start", where, 0, OFFSET_MAX)
            end = self.number(inner, "end", where, 0, OFFSET_MAX)
            if start > end:
                self.faults.append(f"{where} starts at {start}, after its end {end}: swap them")
            yield (
                int(name),
                PartitionCut(
                    start,
                    end,
                    self.number(
                        {"logStart": NO_OFFSET, **inner}, "logStart", where, -1, OFFSET_MAX
                    ),
                    self.number(
                        {"leaderEpoch": NO_EPOCH, **inner}, "leaderEpoch", where, -1, INT_MAX
                    ),
                    tuple(self.counts(inner, where, start, end)),
                ),
            )

    def counts(
        self, row: Mapping[str, object], where: str, start: int, end: int
    ) -> Iterator[Counted]:
        given = row.get(_COUNTS, [])
        rows = given if isinstance(given, list) else [given]
        place = start
        for each in rows:
            counted = _counted(each, place, end)
            if counted is None:
                self.faults.append(
                    f"{_COUNTS} of {where} has {_shown(each)}, expected [offset, records, digest]:"
                    f" an offset above {place} and up to {end}, at most as many records as"
                    f" offsets, and a digest below {DIGEST_END}"
                )
                return
            place = counted.beyond
            yield counted
        if rows and place != end:
            self.faults.append(f"{_COUNTS} of {where} ends at {place}, expected {end}")


def _counted(row: object, first: int, end: int) -> Counted | None:
    """Parse an entry of "counts": [end offset, records, digest]. `first` is the first offset of the
    entry. Return None if the entry is malformed, or if its end offset is above `end`."""
    if not isinstance(row, list) or len(row) != 3 or any(type(each) is not int for each in row):
        return None
    beyond, records, digest = row
    if first < beyond <= end and 0 <= records <= beyond - first and 0 <= digest < DIGEST_END:
        return Counted(first, beyond, records, digest)
    return None


def object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the dict of a JSON object from its (name, value) pairs. Raises ValueError for a
    repeated name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object contains the key {twice!r} more than once")
    return found


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _shown(value: object) -> str:
    text = "missing" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def cut_document(cut: PartitionCut) -> dict[str, object]:
    found: dict[str, object] = {
        "start": cut.start,
        "end": cut.end,
        "logStart": cut.log_start,
        "leaderEpoch": cut.leader_epoch,
    }
    if cut.counts:
        found["counts"] = [[each.beyond, each.records, each.digest] for each in cut.counts]
    return found
