"""`consumer-groups --reset-offsets`: the flags, the CSV of --export and --from-file, and the new
offsets of a group. This module commits no offsets."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import click

from pybroker.client.admin.admin import Admin
from pybroker.client.offset_lookup import EARLIEST, LATEST
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.tools._cli import Failure
from pybroker.tools._json_file import read_file

Plan = dict[TopicPartition, int]

DATETIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)\.(\d{3})(?:(Z)|([+-])(\d\d):?(\d\d)?)?", re.ASCII
)
DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?\d+)D)?"
    r"(?P<time>T(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?"
    r"(?:(?P<seconds>[-+]?\d+)(?:[.,](?P<fraction>\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
INTEGER = re.compile(r"[-+]?\d+", re.ASCII)
QUOTED_FROM = 25
"""Kafka's tool always quotes a text of this length or more, and a shorter text only if needed."""
PLAIN = re.compile(r"[^\x00-,]*")
NOTHING_SHIFTS = "Cannot shift offset for partition {} since there is no current committed offset"


@dataclass(frozen=True, slots=True)
class Reset:
    """The parsed flags of `consumer-groups --reset-offsets`. Exactly one field from `to_earliest`
    to `from_file` is set. `topics`: values of --topic such as "orders" and "orders:0,1"."""

    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_offset: int | None = None
    shift_by: int | None = None
    to_timestamp: int | None = None
    from_file: Mapping[str, Plan] | None = None
    all_topics: bool = False
    topics: tuple[str, ...] = ()


class Resetter:
    """Computes the new offsets of groups. `timeout_ms` limits each request."""

    def __init__(self, admin: Admin, reset: Reset, timeout_ms: int) -> None:
        self._admin = admin
        self._reset = reset
        self._timeout_ms = timeout_ms

    async def plan(self, group: str) -> Plan:
        """Return the new offset of each partition. If an offset is outside the log, print a
        warning, and use the nearest offset in the log instead. Raises PybrokerError,
        click.UsageError."""
        reset = self._reset
        if reset.from_file is not None:
            if group not in reset.from_file:
                click.echo(f"\nError: No reset plan for group {group} found")
                return {}
            return await self._within_range(reset.from_file[group])
        committed = await self._committed(group)
        partitions = sorted(committed) if reset.all_topics else await self._named_partitions()
        return dict(sorted((await self._offsets(partitions, committed)).items()))

    async def _offsets(self, partitions: list[TopicPartition], committed: Plan) -> Plan:
        reset = self._reset
        if reset.to_offset is not None:
            return await self._within_range(dict.fromkeys(partitions, reset.to_offset))
        if reset.shift_by is not None:
            for key in partitions:
                if key not in committed:
                    raise click.UsageError(NOTHING_SHIFTS.format(key))
            return await self._within_range(
                {key: committed[key] + reset.shift_by for key in partitions}
            )
        if reset.to_timestamp is not None:
            return await self._at_time(partitions, reset.to_timestamp)
        if reset.to_current:
            ends = await self._look_up([key for key in partitions if key not in committed], LATEST)
            return {key: committed[key] for key in partitions if key in committed} | ends
        return await self._look_up(partitions, EARLIEST if reset.to_earliest else LATEST)

    async def _committed(self, group: str) -> Plan:
        answers = await self._admin.committed_offsets({group: None}, timeout_ms=self._timeout_ms)
        return {key: row.offset for key, row in answers[group].check().offsets.items()}

    async def _named_partitions(self) -> list[TopicPartition]:
        wanted = parse_topics(self._reset.topics)
        known = await self._admin.describe_topics(wanted)
        found: dict[TopicPartition, None] = {}
        for topic, numbers in wanted.items():
            info = known[topic]
            if info.error != ErrorCode.NONE:
                raise Failure(f"topic {topic} cannot be described: {info.error.text}")
            for number in sorted(info.partitions) if numbers is None else numbers:
                if number not in info.partitions:
                    raise Failure(
                        f"topic {topic} has no partition {number}; it has"
                        f" {len(info.partitions)} partitions"
                    )
                found[TopicPartition(topic, number)] = None
        return list(found)

    async def _look_up(self, partitions: Iterable[TopicPartition], moment: int) -> Plan:
        answers = await self._admin.list_offsets(
            dict.fromkeys(partitions, moment), timeout_ms=self._timeout_ms
        )
        for key, answer in answers.items():
            if answer.error is not None:
                raise Failure(f"the offset of partition {key} cannot be looked up: {answer.error}")
        return {key: answer.offset for key, answer in answers.items()}

    async def _at_time(self, partitions: Iterable[TopicPartition], timestamp: int) -> Plan:
        found = await self._look_up(partitions, timestamp)
        late = [key for key, offset in found.items() if offset < 0]
        for topic, number in late:
            click.echo(
                f"\nWarn: Partition {number} from topic {topic} is empty. Falling back to latest"
                " known offset."
            )
        return found | await self._look_up(late, LATEST)

    async def _within_range(self, requested: Plan) -> Plan:
        starts = await self._look_up(requested, EARLIEST)
        ends = await self._look_up(requested, LATEST)
        return {
            key: _between(key, offset, starts[key], ends[key])
            for key, offset in sorted(requested.items())
        }


def _between(key: TopicPartition, offset: int, start: int, end: int) -> int:
    if start <= offset <= end:
        return offset
    which, nearest = ("higher than latest", end) if offset > end else ("lower than earliest", start)
    click.echo(
        f"WARN New offset ({offset}) is {which} offset for topic partition {key}. Value will be"
        f" set to {nearest}",
        err=True,
    )
    return nearest


# Flags


def parse_topics(words: Iterable[str]) -> dict[str, list[int] | None]:
    """Parse values of --topic such as "orders" and "orders:0,1". Return topic -> its partitions
    (None: all). Raises click.UsageError with Kafka's messages."""
    found: dict[str, list[int] | None] = {}
    for word in words:
        if ":" not in word:
            found[word] = None
            continue
        parts = word.rstrip(":").split(":")
        if len(parts) != 2:
            raise click.UsageError(
                f"Invalid topic arg '{word}', expected topic name and partitions"
            )
        topic, numbers = parts
        for number in numbers.rstrip(",").split(","):
            if not INTEGER.fullmatch(number):
                raise click.UsageError(
                    f"Invalid partition '{number}' specified in topic arg '{word}''"
                )
            chosen = found.setdefault(topic, [])
            if chosen is not None:
                chosen.append(int(number))
    return found


def parse_datetime(text: str) -> int:
    """Return the time in ms since 1970 of an ISO 8601 text. A text without a time zone is in UTC.
    Raises Failure."""
    if "T" not in text:
        raise Failure(
            "Error parsing timestamp. It does not contain a 'T' according to ISO8601 format"
        )
    match = DATETIME.fullmatch(text)
    if match is None:
        raise Failure(
            f'Unparseable date: "{text}" (expected YYYY-MM-DDTHH:mm:SS.sss, and Z or +HH:mm if it'
            " is not UTC)"
        )
    *numbers, milliseconds, _, sign, hours, minutes = match.groups()
    zone = UTC
    if sign is not None:
        distance = timedelta(hours=int(hours), minutes=int(minutes or 0))
        if distance < timedelta(days=1):
            zone = timezone(-distance if sign == "-" else distance)
    try:
        moment = datetime(*map(int, numbers), tzinfo=zone)  # type: ignore[misc,arg-type]
    except ValueError as error:
        raise Failure(f'Unparseable date: "{text}" ({error})') from None
    return int(moment.timestamp()) * 1_000 + int(milliseconds)


def parse_duration(text: str) -> int:
    """Return the ms of an ISO 8601 duration such as P1DT2H or PT30.5S, as java.time parses it.
    Raises Failure."""
    match = DURATION.fullmatch(text)
    fields = {} if match is None else match.groupdict()
    amounts = [fields.get(name) for name in ("days", "hours", "minutes", "seconds")]
    if not any(amounts) or (fields.get("time") or "").upper() == "T":
        raise Failure(f"Text cannot be parsed to a Duration: {text} (expected PnDTnHnMnS)")
    days, hours, minutes, seconds = (int(amount or 0) for amount in amounts)
    millis = int(f"{fields['fraction'] or '':0<3}"[:3])
    if (fields["seconds"] or "").startswith("-"):
        millis = -millis
    total = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + millis
    return -total if fields["sign"] == "-" else total


# CSV


def parse_plans(path: str, groups: tuple[str, ...]) -> dict[str, Plan]:
    """Return the new offsets of each group in a CSV file with lines "group,topic,partition,offset",
    or for a single group "topic,partition,offset". Raises Failure."""
    plans: dict[str, Plan] = {}
    lines = read_file(path).rstrip("\n").split("\n")
    row_of: Callable[[list[str]], tuple[str, TopicPartition, int] | None] = _row_with_group
    if len(groups) == 1 and _row_of(groups[0], next(csv.reader(lines[:1]), [])) is not None:
        row_of = lambda fields: _row_of(groups[0], fields)  # noqa: E731
    for number, line in enumerate(lines, 1):
        row = row_of(next(csv.reader([line.rstrip("\r")]), []))
        if row is None:
            wanted = "group,topic,partition,offset"
            if len(groups) == 1:
                wanted += " (or topic,partition,offset in all lines)"
            raise Failure(f"{path}, line {number}: expected {wanted}, found {line!r}")
        group, key, offset = row
        plans.setdefault(group, {})[key] = offset
    return plans


def _row_with_group(fields: list[str]) -> tuple[str, TopicPartition, int] | None:
    return _row_of(fields[0], fields[1:]) if len(fields) == 4 else None


def _row_of(group: str, fields: list[str]) -> tuple[str, TopicPartition, int] | None:
    if len(fields) != 3 or not all(INTEGER.fullmatch(word.strip()) for word in fields[1:]):
        return None
    return group, TopicPartition(fields[0], int(fields[1])), int(fields[2])


def csv_text(plans: Mapping[str, Plan], *, with_group: bool) -> str:
    """Return the CSV lines of --export, quoted as by Kafka's tool. With `with_group` each line
    begins with the group."""
    out = io.StringIO()
    for group, plan in plans.items():
        for (topic, number), offset in plan.items():
            names = [group, topic] if with_group else [topic]
            out.write(",".join([*map(_quoted, names), str(number), str(offset)]) + "\n")
    return out.getvalue()


def _quoted(text: str) -> str:
    if len(text) < QUOTED_FROM and PLAIN.fullmatch(text):
        return text
    return '"' + text.replace('"', '""') + '"'
