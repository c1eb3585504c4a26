"""The options of the clients, one row for each. A name has two spellings: `linger.ms` and
`linger_ms`. The application may give any value as text."""

from __future__ import annotations

import dataclasses
import difflib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from pybroker.client.addresses import split_address
from pybroker.client.assignors import assignor_name
from pybroker.client.errors import ConfigError
from pybroker.config.properties import is_property

log = logging.getLogger(__name__)

T = TypeVar("T")

INT32_MAX = 2**31 - 1
IN_FLIGHT_WITH_IDEMPOTENCE_MAX = 5
"""The maximum of max.in.flight.requests.per.connection with idempotence. A broker recognizes
duplicates only of the last five batches of a producer."""

ALIASES: Mapping[str, str] = {
    "max_in_flight": "max_in_flight_requests_per_connection",
    "bootstrap_server": "bootstrap_servers",
}
_BUFFERS = "the operating system chooses the sizes of socket buffers"
WITHOUT_EFFECT: Mapping[str, str] = {
    "key_serializer": "a function is an argument of Producer of this name",
    "value_serializer": "a function is an argument of Producer of this name",
    "key_deserializer": "a function is an argument of Consumer of this name",
    "value_deserializer": "a function is an argument of Consumer of this name",
    "metric_reporters": "give the client a function on_metrics instead",
    "retries": "delivery.timeout.ms and default.api.timeout.ms limit the time for retries",
    "send_buffer_bytes": _BUFFERS,
    "receive_buffer_bytes": _BUFFERS,
}
"""Kafka's options without an effect here, each with the reason. In a properties file they cause a
warning. As keyword arguments they are errors, because the program that sets one expects an effect.
"""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A type of option values. `read` converts a value, or raises ValueError. `annotation` is for
    type checkers. `alias` is the name of the annotation in `keywords.py` ("" for none)."""

    read: Callable[[object], T]
    annotation: str
    alias: str = ""


def _whole(minimum: int, maximum: int = INT32_MAX) -> Kind[int]:
    def read(value: object) -> int:
        try:
            if isinstance(value, bool):
                raise ValueError
            number = int(value) if isinstance(value, (int, str)) else int("")
        except ValueError:
            raise ValueError(f"must be a whole number, not {value!r}") from None
        if not minimum <= number <= maximum:
            raise ValueError(f"must be from {minimum} to {maximum}, not {number}")
        return number

    return Kind(read, "int")


def _one_of(alias: str, *choices: str) -> Kind[str]:
    def read(value: object) -> str:
        text = str(value).lower()
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, not {value!r}")
        return text

    return Kind(read, f"Literal[{', '.join(map(json.dumps, choices))}]", alias)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {value!r}")
    return value


def _name(value: object) -> str | None:
    """Return the value as text; None for empty text."""
    return None if value is None else _text(value) or None


def _assignors(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not parts:
        raise ValueError(f"must name at least one assignor, not {value!r}")
    return tuple(dict.fromkeys(assignor_name(_text(part)) for part in parts))


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ValueError(f"must be true or false, not {value!r}")
    return text == "true"


def _acks(value: object) -> int:
    text = str(value).lower()
    numbers = {"all": -1, "-1": -1, "0": 0, "1": 1}
    if text not in numbers:
        raise ValueError(f"must be all, -1, 0 or 1, not {value!r}")
    return numbers[text]


def _addresses(value: object) -> tuple[tuple[str, int], ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise ValueError(f"must be host:port[,host:port], not {value!r}")
    found = tuple(split_address(str(part).strip()) for part in parts if str(part).strip())
    if not found:
        raise ValueError("must name at least one host:port")
    return found


TEXT: Final = Kind(_text, "str")
NAME: Final = Kind(_name, "str | None")
FLAG: Final = Kind(_flag, "bool")
ACKS: Final = Kind(_acks, 'Literal["all", -1, 0, 1]', "Acks")
ADDRESSES: Final = Kind(_addresses, "str | Sequence[str]")
ASSIGNORS: Final = Kind(_assignors, "str | Sequence[str]")


def _option(default: T, kind: Kind[T], meaning: str) -> T:
    return field(default=default, metadata={"kind": kind, "meaning": meaning})


def _statistics_interval() -> int:
    return _option(
        10_000,
        _whole(0),
        "the interval of the calls of on_metrics (as in librdkafka); 0: only at the end of close",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of all clients."""

    bootstrap_servers: tuple[tuple[str, int], ...] = _option(
        (("127.0.0.1", 9092),), ADDRESSES, "host:port of some brokers to start from"
    )
    client_id: str = _option("pybroker", TEXT, "the name by which brokers log this client")
    security_protocol: str = _option(
        "plaintext", _one_of("SecurityProtocol", "plaintext"), "the only supported protocol"
    )
    bootstrap_timeout_ms: int = _option(
        5_000, _whole(0), "the time limit for connecting to any of the bootstrap addresses"
    )
    request_timeout_ms: int = _option(30_000, _whole(1), "the time limit for a response")
    default_api_timeout_ms: int = _option(
        60_000, _whole(1), "the time limit of an operation with its retries"
    )
    socket_connection_setup_timeout_ms: int = _option(
        10_000, _whole(1), "the time limit for connecting, including the first request"
    )
    reconnect_backoff_ms: int = _option(
        50, _whole(0), "the first backoff after a failed connection"
    )
    reconnect_backoff_max_ms: int = _option(
        1_000, _whole(0), "the maximum backoff after failed connections"
    )
    retry_backoff_ms: int = _option(100, _whole(0), "the first backoff after a failed request")
    retry_backoff_max_ms: int = _option(
        1_000, _whole(0), "the maximum backoff after failed requests"
    )
    leaderless_timeout_ms: int = _option(
        0,
        _whole(0),
        "a read or an admin call fails after its partition has had no leader for this time; 0 means"
        " no such limit; for records of a producer, delivery.timeout.ms applies instead",
    )
    metadata_max_age_ms: int = _option(300_000, _whole(1), "refresh metadata at least this often")
    receive_message_max_bytes: int = _option(
        100_000_000, _whole(1_000), "the maximum size of a response in bytes (as in librdkafka)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions(ClientOptions):
    """Options of Admin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """Options of Producer; defaults are those of the Java client."""

    acks: int = _option(
        -1, ACKS, "required acknowledgements: all in-sync replicas (-1), leader (1), none (0)"
    )
    enable_idempotence: bool = _option(
        True, FLAG, "whether retries of the producer add no duplicates"
    )
    compression_type: str = _option(
        "none",
        _one_of("CompressionType", "none", "gzip", "snappy", "lz4", "zstd"),
        "codec of the batches",
    )
    linger_ms: int = _option(0, _whole(0), "the time to wait for more records of a batch")
    batch_size: int = _option(
        16_384, _whole(0), "the maximum size of a batch before compression, in bytes"
    )
    buffer_memory: int = _option(
        33_554_432, _whole(0, 2**63 - 1), "the maximum size of all unsent records, in bytes"
    )
    max_block_ms: int = _option(
        60_000, _whole(0), "the maximum time that send() waits for memory and metadata"
    )
    max_request_size: int = _option(
        1_048_576, _whole(1), "the maximum size of a record or a request, in bytes"
    )
    delivery_timeout_ms: int = _option(
        120_000, _whole(1), "the maximum time from send() to success or failure"
    )
    max_in_flight_requests_per_connection: int = _option(
        5, _whole(1), "the maximum number of requests in flight to a broker"
    )
    metadata_max_idle_ms: int = _option(
        300_000,
        _whole(5_000),
        "omit a topic from metadata requests if no record was sent to it for this time",
    )
    transactional_id: str | None = _option(
        None, NAME, "the id of a transactional producer, which must be the same after a restart"
    )
    transaction_timeout_ms: int = _option(
        60_000, _whole(1), "the time after which the coordinator aborts an open transaction"
    )
    allow_auto_create_topics: bool = _option(
        True, FLAG, "let the broker create a topic that does not exist"
    )
    statistics_interval_ms: int = _statistics_interval()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    """Options of Consumer; defaults are those of the Java client."""

    auto_offset_reset: str = _option(
        "latest",
        _one_of("AutoOffsetReset", "earliest", "latest", "none"),
        "where reading starts if no valid offset is committed",
    )
    isolation_level: str = _option(
        "read_uncommitted",
        _one_of("IsolationLevel", "read_uncommitted", "read_committed"),
        "read_uncommitted returns records of open and aborted transactions, too",
    )
    fetch_min_bytes: int = _option(
        1, _whole(0), "the number of bytes for which a broker waits before it answers a Fetch"
    )
    fetch_max_wait_ms: int = _option(
        500, _whole(0), "the maximum time that a broker waits for fetch.min.bytes"
    )
    fetch_max_bytes: int = _option(52_428_800, _whole(0), "the maximum bytes of a Fetch response")
    max_partition_fetch_bytes: int = _option(
        1_048_576, _whole(0), "the maximum bytes of one partition in a Fetch response"
    )
    max_poll_records: int = _option(
        500, _whole(1), "the maximum number of records from one getmany()"
    )
    max_poll_interval_ms: int = _option(
        300_000, _whole(1), "a consumer that does not read for this time leaves its group"
    )
    group_id: str | None = _option(None, NAME, "the group of the consumer")
    group_instance_id: str | None = _option(
        None, NAME, "the id of a static member, whose restarts cause no rebalance"
    )
    session_timeout_ms: int = _option(
        45_000,
        _whole(1),
        "the time without heartbeats after which a member is removed from its group",
    )
    heartbeat_interval_ms: int = _option(3_000, _whole(1), "the interval of a member's heartbeats")
    partition_assignment_strategy: tuple[str, ...] = _option(
        ("range", "cooperative-sticky"), ASSIGNORS, "the assignors, in order of preference"
    )
    enable_auto_commit: bool = _option(True, FLAG, "commit positions automatically while reading")
    auto_commit_interval_ms: int = _option(5_000, _whole(0), "the interval of automatic commits")
    exclude_internal_topics: bool = _option(
        True, FLAG, "whether internal topics are excluded from patterns"
    )
    client_rack: str = _option("", TEXT, "the rack of the consumer, for the assignor")
    check_crcs: bool = _option(True, FLAG, "whether to verify the checksum of each batch")
    allow_auto_create_topics: bool = _option(
        False, FLAG, "let the broker create a topic that does not exist"
    )
    statistics_interval_ms: int = _statistics_interval()


OptionsT = TypeVar("OptionsT", bound=ClientOptions)


def _dotted(name: str) -> str:
    return name.replace("_", ".")


def _python_name(name: str) -> str:
    plain = name.replace(".", "_")
    return ALIASES.get(plain, plain)


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(_python_name(name), known, n=1, cutoff=0.6)
    spelled = [_dotted(match) if "." in name else match for match in near]
    hint = f"; did you mean {spelled[0]}?" if spelled else ""
    return f"unknown option {name}{hint}"


def parse_options(
    kind: type[OptionsT],
    given: Mapping[str, object],
    bootstrap_servers: str | Iterable[str] | None = None,
    faults: Iterable[str] = (),
) -> OptionsT:
    """Return a client's options. `bootstrap_servers` overrides the option in `given`. Raises
    ConfigError with all invalid options and the `faults` (messages about other arguments)."""
    if bootstrap_servers is not None:
        is_text = isinstance(bootstrap_servers, str)
        addresses = bootstrap_servers if is_text else list(bootstrap_servers)
        given = {**given, "bootstrap_servers": addresses}
    rows = {row.name: row for row in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    faults = [*faults]
    for name, value in given.items():
        plain = _python_name(name)
        if plain in rows:
            if plain in values:
                faults.append(f"option {name} is set twice")
            try:
                values[plain] = rows[plain].metadata["kind"].read(value)
            except ValueError as error:
                faults.append(f"option {name} {error}")
        elif plain not in WITHOUT_EFFECT:
            faults.append(_unknown(name, list(rows)))
        elif is_property(name, value):
            log.warning("option without effect name=%s", name)
        else:
            faults.append(f"option {name} has no effect: {WITHOUT_EFFECT[plain]}; leave it out")
    if issubclass(kind, ProducerOptions) and not faults:
        faults = _settle_producer(values)
    if issubclass(kind, ConsumerOptions) and not faults:
        faults = _settle_consumer(values)
    if faults:
        raise ConfigError(faults)
    return kind(**values)


def _settle_producer(values: dict[str, object]) -> list[str]:
    """Add to `values` the defaults that depend on other options. Return a message for each
    contradiction between options."""
    faults = []
    defaults = ProducerOptions()

    def value(name: str) -> int:
        found = values.get(name, getattr(defaults, name))
        assert isinstance(found, int)
        return found

    in_flight = value("max_in_flight_requests_per_connection")
    clashes = []
    if value("acks") != -1:
        clashes.append("acks=all")
    if in_flight > IN_FLIGHT_WITH_IDEMPOTENCE_MAX:
        clashes.append(
            f"max.in.flight.requests.per.connection of at most {IN_FLIGHT_WITH_IDEMPOTENCE_MAX}"
        )
    if values.get("transactional_id") and values.get("enable_idempotence") is False:
        faults.append("transactional.id needs enable.idempotence=true")
    elif clashes and values.get("transactional_id"):
        faults.append(f"transactional.id needs {' and '.join(clashes)}")
    elif clashes and "enable_idempotence" not in values:
        values["enable_idempotence"] = False
    elif clashes and values["enable_idempotence"]:
        faults.append(f"enable.idempotence needs {' and '.join(clashes)}")
    needed = value("linger_ms") + value("request_timeout_ms")
    if value("delivery_timeout_ms") < needed:
        if "delivery_timeout_ms" in values:
            faults.append(
                "delivery.timeout.ms must be at least linger.ms + request.timeout.ms"
                f" = {needed}, not {values['delivery_timeout_ms']}"
            )
        else:
            values["delivery_timeout_ms"] = needed
    return faults


def _settle_consumer(values: dict[str, Any]) -> list[str]:
    """Add to `values` the defaults that depend on other options. Return a message for each
    contradiction between options."""
    faults = []
    defaults = ConsumerOptions()
    if values.get("group_instance_id") and not values.get("group_id"):
        faults.append("group.instance.id needs a group.id")
    heartbeat = values.get("heartbeat_interval_ms", defaults.heartbeat_interval_ms)
    session = values.get("session_timeout_ms", defaults.session_timeout_ms)
    if heartbeat >= session and "heartbeat_interval_ms" not in values:
        values["heartbeat_interval_ms"] = max(session // 3, 1)
    elif heartbeat >= session:
        faults.append(
            f"heartbeat.interval.ms must be below session.timeout.ms = {session}, not {heartbeat}"
        )
    return faults
