"""Parses the options of `format("pybroker")` into one frozen `ReadRequest`.

Names, defaults and precedence are those of Spark's Kafka source. Each option is used, refused, or
ignored with a notice.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeVar

from pybroker.client.offset_lookup import EARLIEST, LATEST
from pybroker.client.options import ConsumerOptions, parse_options
from pybroker.errors import ConfigError
from pybroker.model import TopicPartition
from pybroker.spark import option_values as values
from pybroker.spark.planning import AtTime, Bound, Bounds, SnapshotSpec

T = TypeVar("T")
OptionalNumbers: TypeAlias = Mapping[TopicPartition, int] | None

COLUMNS: Final = (
    *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"),
)
CLIENT_PREFIX: Final = "kafka."
READ_UNCOMMITTED: Final = "read_uncommitted"

NOT_IN_BATCH: Final = "is for streaming queries; a batch reads its whole range"
NO_GROUP: Final = "has no effect: a read does not join a group"
NOT_USED: Final = "has no effect: this client does not use it"
NOTICED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"), NOT_IN_BATCH
    ),
    "groupIdPrefix": NO_GROUP,
    **dict.fromkeys(
        (
            *("kafka.group.id", "kafka.group.instance.id", "kafka.group.protocol"),
            *("kafka.group.remote.assignor", "kafka.session.timeout.ms"),
            *("kafka.heartbeat.interval.ms", "kafka.max.poll.interval.ms"),
            *("kafka.partition.assignment.strategy", "kafka.auto.commit.interval.ms"),
        ),
        NO_GROUP,
    ),
    **dict.fromkeys(
        (
            *("kafka.allow.auto.create.topics", "kafka.auto.include.jmx.reporter"),
            *("kafka.client.dns.lookup", "kafka.connections.max.idle.ms"),
            *("kafka.enable.metrics.push", "kafka.exclude.internal.topics"),
            *("kafka.max.poll.records", "kafka.metadata.recovery.strategy"),
            *("kafka.metadata.recovery.rebootstrap.trigger.ms", "kafka.metric.reporters"),
            *("kafka.metrics.num.samples", "kafka.metrics.recording.level"),
            *("kafka.metrics.sample.window.ms", "kafka.receive.buffer.bytes"),
            *("kafka.send.buffer.bytes", "kafka.fetch.min.bytes"),
            "kafka.socket.connection.setup.timeout.max.ms",
        ),
        NOT_USED,
    ),
}
"""Option without effect -> the reason. The option is accepted, and the reason is logged."""

NO_SECURITY: Final = "is refused: this client supports neither TLS nor SASL"
REFUSED: Final[Mapping[str, str]] = {
    "kafka.auto.offset.reset": "is refused: use startingOffsets; a batch read never resets"
    " its position",
    "kafka.key.deserializer": "is refused: keys are binary; decode them with Spark's functions",
    "kafka.value.deserializer": "is refused: values are binary; decode them with Spark's functions",
    "kafka.enable.auto.commit": "is refused: a batch commits no offsets",
    "kafka.interceptor.classes": "is refused: this client cannot run Java classes",
    "kafka.security.providers": NO_SECURITY,
    "kafka.sasl.": NO_SECURITY,
    "kafka.ssl.": NO_SECURITY,
    "path": "is refused: a topic is not a path; use subscribe",
}
"""Refused option -> the reason. A name that ends with a dot is a prefix of options."""

ELSEWHERE: Final[Mapping[str, str]] = {
    "topic": 'is for writing, but this source only reads: write with format("kafka"), or use'
    " subscribe to read",
    "checkpointlocation": "is for streams, but this source reads in batch only: use"
    ' format("kafka") for them',
    "provider": "comes from CREATE TABLE, but a topic cannot be a table of the catalog: use CREATE"
    " TEMPORARY VIEW ... USING pybroker OPTIONS (...)",
}
"""Option of a stream, a write or a table -> the error message, which is then the only message."""

Mode = Literal["append", "latest"]
Tombstones = Literal["keep", "drop"]


def _option(name: str, read: Callable[[str], T], meaning: str) -> T | None:
    return field(default=None, metadata={"name": name, "read": read, "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """The given options; None means not given. The metadata of each field has the option's name,
    parser and meaning."""

    subscribe: tuple[str, ...] | None = _option(
        "subscribe", values.words, "topics, separated by commas"
    )
    subscribe_pattern: str | None = _option(
        "subscribePattern",
        values.pattern,
        "the topics whose name matches this regular expression",
    )
    assign: Mapping[str, tuple[int, ...]] | None = _option(
        "assign", values.partitions, "JSON: the partitions of each topic"
    )
    starting_timestamp: int | None = _option(
        "startingTimestamp",
        values.whole(0, values.INT64_MAX),
        "starts at the first record with this timestamp (ms since 1970) or later",
    )
    starting_by_timestamp: Mapping[TopicPartition, int] | None = _option(
        "startingOffsetsByTimestamp", values.timestamps, "JSON: a timestamp for each partition"
    )
    starting_offsets: str | Mapping[TopicPartition, int] | None = _option(
        "startingOffsets",
        values.starting_offsets,
        "earliest, or JSON: an offset for each partition",
    )
    no_match: str | None = _option(
        "startingOffsetsByTimestampStrategy",
        values.one_of("error", "latest"),
        "error or latest: for a partition without a record since the starting timestamp",
    )
    ending_timestamp: int | None = _option(
        "endingTimestamp",
        values.whole(0, values.INT64_MAX),
        "ends before the first record with this timestamp (ms since 1970) or later",
    )
    ending_by_timestamp: Mapping[TopicPartition, int] | None = _option(
        "endingOffsetsByTimestamp", values.timestamps, "JSON: a timestamp for each partition"
    )
    ending_offsets: str | Mapping[TopicPartition, int] | None = _option(
        "endingOffsets", values.ending_offsets, "latest, or JSON: an offset for each partition"
    )
    snapshot: str | None = _option(
        "snapshot", str.strip, "a snapshot as JSON, or the path of its file"
    )
    mode: str | None = _option(
        "mode", values.one_of("append", "latest"), "all records, or the last record of each key"
    )
    tombstones: str | None = _option(
        "tombstones", values.one_of("keep", "drop"), "whether records without a value become rows"
    )
    columns: tuple[str, ...] | None = _option(
        "columns", values.words, "the columns to read, in this order; other columns are not decoded"
    )
    include_headers: bool | None = _option(
        "includeHeaders", values.flag, "true adds the column headers"
    )
    fail_on_data_loss: bool | None = _option(
        "failOnDataLoss",
        values.flag,
        "true: fail if records of the range were deleted; false: skip them",
    )
    min_partitions: int | None = _option(
        "minPartitions", values.whole(1), "split large ranges into about this number of tasks"
    )
    max_records: int | None = _option(
        "maxRecordsPerPartition",
        values.whole(1, values.INT64_MAX),
        "the most offsets that a task reads, about",
    )
    max_bytes: int | None = _option(
        "maxBytesPerPartition", values.size, "the most bytes of the log that a task reads, about"
    )
    latest_memory: int | None = _option(
        "latestMemory",
        values.size_up_to_a_gigabyte,
        "with mode=latest: the memory of a task in bytes, before it spills to disk",
    )
    poll_timeout_ms: int | None = _option(
        "kafkaConsumer.pollTimeoutMs", values.whole(1), "ms to wait for a leader's response"
    )
    retries: int | None = _option(
        "fetchOffset.numRetries", values.whole(0), "how often the look-up of offsets is retried"
    )
    retry_interval_ms: int | None = _option(
        "fetchOffset.retryIntervalMs", values.whole(0), "the pause before a retry, in ms"
    )


_ROWS: Final = {row.metadata["name"].lower(): row for row in dataclasses.fields(_Given)}
OPTIONS: Final[Mapping[str, str]] = {
    row.metadata["name"]: row.metadata["meaning"] for row in _ROWS.values()
}
"""Option that is used -> its meaning. The client's options (kafka.*) are not listed."""

_PLACES: Final = ("subscribe", "subscribePattern", "assign")
_BOUNDS: Final = (
    ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"),
    ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"),
)
"""The options for the start and for the end. In each row, the first given option is used, as in
Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """The complete and consistent options of one read."""

    client: Mapping[str, str]
    """Options of the client; bootstrap.servers may be missing if a snapshot names the brokers."""
    snapshot: str | None
    """A snapshot as JSON, or the path of its file. If this is not None, `spec` is ignored."""
    spec: SnapshotSpec
    isolation: str | None
    """The isolation level in the options. None means the isolation level of the snapshot, or
    READ_UNCOMMITTED if the read has no snapshot."""
    mode: Mode
    tombstones: Tombstones
    chosen_columns: tuple[str, ...] | None
    """The option `columns`; None: not given."""
    include_headers: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int
    latest_memory_bytes: int
    poll_timeout_ms: int
    planning_retries: int
    planning_retry_interval_ms: int
    notices: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read, unless the user's own schema chooses other columns."""
        if self.chosen_columns is not None:
            return self.chosen_columns
        return COLUMNS if self.include_headers else COLUMNS[:-1]


def read_request(options: Mapping[str, str]) -> ReadRequest:
    """Return the parsed options of one Spark read. Raises one ConfigError that names all faults, or
    only the first option that is in ELSEWHERE."""
    elsewhere = [
        f"{name} {ELSEWHERE[low]}" for name in options if (low := name.lower()) in ELSEWHERE
    ]
    if elsewhere:
        raise ConfigError(elsewhere[:1])
    faults: list[str] = []
    notices: list[str] = []
    client, own = _sorted_out(options, faults, notices)
    parsed: dict[str, Any] = {}
    for name, text in own.items():
        row = _ROWS[name]
        try:
            parsed[row.name] = row.metadata["read"](text)
        except ValueError as error:
            faults.append(f"{row.metadata['name']} {error}")
    given = _Given(**parsed)
    faults += _client_faults(client, is_needed=given.snapshot is None)
    faults += _contradictions(given, {_ROWS[name].metadata["name"] for name in own})
    if faults:
        raise ConfigError(faults)
    return _request(given, client, [*notices, *_outranked(given)])


def client_option_fault(name: str, text: str) -> str | None:
    """Return the fault of a job's option `kafka.*`; None if the option is accepted."""
    faults: list[str] = []
    client, _ = _sorted_out({name: text}, faults, [])
    faults += _client_faults(client, is_needed=False)
    return "; ".join(faults) or None


def has_effect(name: str) -> bool:
    """Return whether an option has an effect. Options that are accepted with a notice have none."""
    return name.lower() not in {noticed.lower() for noticed in NOTICED}


def _sorted_out(
    options: Mapping[str, str], faults: list[str], notices: list[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (client options without the prefix `kafka.`, options of this source). All names are in
    lower case. Add a message to `faults` for a refused or unknown option, and to `notices` for an
    option in NOTICED."""
    noticed = {name.lower(): (name, reason) for name, reason in NOTICED.items()}
    client: dict[str, str] = {}
    own: dict[str, str] = {}
    for given_name, text in options.items():
        name = given_name.lower()
        refusal = _refusal(name)
        if refusal is not None:
            faults.append(f"{given_name} {refusal}")
        elif name in noticed:
            notices.append(" ".join(noticed[name]))
        elif name in _ROWS:
            own[name] = text
        elif name.startswith(CLIENT_PREFIX):
            client[name.removeprefix(CLIENT_PREFIX)] = text
        else:
            faults.append(_unknown(given_name))
    return client, own


def _refusal(name: str) -> str | None:
    for refused, reason in REFUSED.items():
        if name == refused or (refused.endswith(".") and name.startswith(refused)):
            return reason
    return None


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), list(_ROWS), n=1, cutoff=0.6)
    hint = f"; did you mean {_ROWS[near[0]].metadata['name']}?" if near else ""
    return f"unknown option {name}{hint}"


def _client_faults(client: Mapping[str, str], *, is_needed: bool) -> list[str]:
    faults = []
    if is_needed and "bootstrap.servers" not in client:
        faults.append("kafka.bootstrap.servers is missing: give brokers as host:port")
    if client.get("check.crcs", "true").strip().lower() != "true":
        faults.append("kafka.check.crcs must be true: a read always checks CRCs")
    try:
        parse_options(ConsumerOptions, client)
    except ConfigError as error:
        faults += [
            fault.replace("option ", f"option {CLIENT_PREFIX}", 1).replace(
                "did you mean ", f"did you mean {CLIENT_PREFIX}"
            )
            for fault in error.faults
        ]
    return faults


def _contradictions(given: _Given, names: set[str]) -> list[str]:
    faults = []
    places = [name for name in _PLACES if name in names]
    bounds = [name for rank in _BOUNDS for name in rank if name in names]
    if given.snapshot is not None:
        faults += [
            f"{name} cannot be combined with snapshot, which contains the ranges to read"
            for name in (*places, *bounds, "startingOffsetsByTimestampStrategy")
            if name in names
        ]
    elif len(places) != 1:
        found = " and ".join(places) or "none"
        faults.append(f"exactly one of {', '.join(_PLACES)} or snapshot must be given, not {found}")
    if given.mode == "latest":
        faults += [
            f"{name} cannot be combined with mode=latest: one task must read a whole partition"
            for name in ("minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition")
            if name in names
        ]
    elif given.latest_memory is not None:
        faults.append("latestMemory needs mode=latest")
    return faults + _column_faults(given) + _range_faults(given)


def _column_faults(given: _Given) -> list[str]:
    if given.columns is None:
        return []
    known = {name.lower(): name for name in COLUMNS}
    faults = [
        f"columns must not contain {name}: expected {', '.join(COLUMNS)}"
        for name in given.columns
        if name.lower() not in known
    ]
    has_headers = "headers" in {name.lower() for name in given.columns}
    if given.include_headers and not has_headers:
        faults.append("includeHeaders=true contradicts columns, which does not contain headers")
    if given.include_headers is False and has_headers:
        faults.append("includeHeaders=false contradicts columns, which contains headers")
    return faults


def _range_faults(given: _Given) -> list[str]:
    """Return the faults of ranges: an end before its start, or a partition with only a start or
    only an end."""
    pairs = (
        ("Offsets", _numbers(given.starting_offsets), _numbers(given.ending_offsets)),
        ("OffsetsByTimestamp", given.starting_by_timestamp, given.ending_by_timestamp),
    )
    if given.starting_timestamp is not None or given.ending_timestamp is not None:
        first, last = given.starting_timestamp, given.ending_timestamp
        if first is not None and last is not None and first > last:
            return [f"startingTimestamp {first} is later than endingTimestamp {last}"]
        return []
    faults = []
    for what, starts, ends in pairs:
        if starts is None or ends is None:
            continue
        for partition in sorted(starts.keys() ^ ends.keys()):
            where = "starting" if partition in starts else "ending"
            faults.append(
                f"{partition} is only in {where}{what}: give it in starting{what} and ending{what}"
            )
        faults += [
            f"starting{what} {starts[partition]} of {partition} is after ending{what}"
            f" {ends[partition]}"
            for partition in sorted(starts.keys() & ends.keys())
            if starts[partition] > ends[partition] >= 0
        ]
    return faults


def _numbers(bound: str | Mapping[TopicPartition, int] | None) -> OptionalNumbers:
    return None if isinstance(bound, str) else bound


def _outranked(given: _Given) -> list[str]:
    notices = []
    for rank in _BOUNDS:
        present = [name for name in rank if getattr(given, _ROWS[name.lower()].name) is not None]
        notices += [f"{name} has no effect: {present[0]} takes precedence" for name in present[1:]]
    return notices


def _bound(
    timestamp: int | None,
    by_timestamp: OptionalNumbers,
    offsets: OptionalNumbers,
    or_latest: bool,
    edge: int,
) -> Bounds:
    if timestamp is not None:
        return AtTime(timestamp, or_latest)
    if by_timestamp is not None:
        return _by_topic({key: AtTime(ms, or_latest) for key, ms in by_timestamp.items()})
    return edge if offsets is None else _by_topic(offsets)


def _by_topic(bounds: Mapping[TopicPartition, Bound]) -> dict[str, dict[int, Bound]]:
    found: dict[str, dict[int, Bound]] = {}
    for (topic, partition), bound in bounds.items():
        found.setdefault(topic, {})[partition] = bound
    return found


def _chosen_columns(given: _Given) -> tuple[str, ...] | None:
    if given.columns is None:
        return None
    known = {name.lower(): name for name in COLUMNS}
    return tuple(dict.fromkeys(known[name.lower()] for name in given.columns))


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _spec(given: _Given, isolation: str) -> SnapshotSpec:
    return SnapshotSpec(
        topics=given.subscribe or (),
        pattern=given.subscribe_pattern,
        partitions=given.assign or {},
        starts=_bound(
            given.starting_timestamp,
            given.starting_by_timestamp,
            _numbers(given.starting_offsets),
            given.no_match == "latest",
            EARLIEST,
        ),
        ends=_bound(
            given.ending_timestamp,
            given.ending_by_timestamp,
            _numbers(given.ending_offsets),
            True,
            LATEST,
        ),
        isolation=isolation,
    )


def _request(given: _Given, client: dict[str, str], notices: list[str]) -> ReadRequest:
    isolation = client.pop("isolation.level", "").strip().lower() or None
    mode: Mode = "latest" if given.mode == "latest" else "append"
    dropped: Tombstones = "drop" if mode == "latest" else "keep"
    tombstones: Tombstones = (
        dropped if given.tombstones is None else "keep" if given.tombstones == "keep" else "drop"
    )
    return ReadRequest(
        client=client,
        snapshot=given.snapshot,
        spec=_spec(given, isolation or READ_UNCOMMITTED),
        isolation=isolation,
        mode=mode,
        tombstones=tombstones,
        chosen_columns=_chosen_columns(given),
        include_headers=_or(given.include_headers, False),
        fail_on_data_loss=_or(given.fail_on_data_loss, True),
        min_partitions=given.min_partitions,
        max_records_per_partition=given.max_records,
        max_bytes_per_partition=_or(given.max_bytes, 128 * 2**20),
        latest_memory_bytes=_or(given.latest_memory, 256 * 2**20),
        poll_timeout_ms=_or(given.poll_timeout_ms, 120_000),
        planning_retries=_or(given.retries, 3),
        planning_retry_interval_ms=_or(given.retry_interval_ms, 10),
        notices=tuple(notices),
    )
