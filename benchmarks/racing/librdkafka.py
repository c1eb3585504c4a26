"""Calls librdkafka, from the wheel of confluent-kafka, directly: with thousands of messages in each
call. Runs librdkafka's own benchmark, `rdkafka_performance`, where it is installed.

The classes of confluent-kafka create a Python object for each message. This costs more than the
broker's work for the message, so a race would measure the client. This module therefore calls the
library by ctypes. Its consumer passes the messages to a C function that does nothing.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import confluent_kafka

FLUSH_MS_MAX: Final = 60_000
SILENCE_SECONDS_MAX: Final = 20.0
_PRODUCER, _CONSUMER = 0, 1
_QUEUE_FULL_PAUSE_SECONDS: Final = 0.002


class ClientFailed(RuntimeError):
    """Raised if the client fails, or does not send or receive all messages, during a measure."""


class _Message(ctypes.Structure):
    """A message of librdkafka, `rd_kafka_message_t` in C."""

    _fields_ = (
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("_private", c_void_p),
    )


_FUNCTIONS: Final[tuple[tuple[str, Any, tuple[Any, ...]], ...]] = (
    ("rd_kafka_conf_new", c_void_p, ()),
    ("rd_kafka_conf_set", c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    ("rd_kafka_new", c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    ("rd_kafka_destroy", None, (c_void_p,)),
    ("rd_kafka_topic_new", c_void_p, (c_void_p, c_char_p, c_void_p)),
    ("rd_kafka_topic_destroy", None, (c_void_p,)),
    ("rd_kafka_produce_batch", c_int, (c_void_p, c_int32, c_int, c_void_p, c_int)),
    ("rd_kafka_flush", c_int, (c_void_p, c_int)),
    ("rd_kafka_poll", c_int, (c_void_p, c_int)),
    ("rd_kafka_consume_start", c_int, (c_void_p, c_int32, c_int64)),
    ("rd_kafka_consume_stop", c_int, (c_void_p, c_int32)),
    ("rd_kafka_consume", ctypes.POINTER(_Message), (c_void_p, c_int32, c_int)),
    ("rd_kafka_message_destroy", None, (c_void_p,)),
    ("rd_kafka_consume_callback", c_int, (c_void_p, c_int32, c_int, c_void_p, c_void_p)),
)


def library() -> ctypes.CDLL:
    """Load librdkafka, the library inside the installed wheel of confluent-kafka, and declare its
    functions. Raises ClientFailed if the wheel does not contain it."""
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    found = sorted(folder.glob("librdkafka*"))
    if not found:
        raise ClientFailed(f"{folder} has no librdkafka: install confluent-kafka from its wheel")
    loaded = ctypes.CDLL(str(found[0]))
    for name, result, arguments in _FUNCTIONS:
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


class _Client:
    """A client of librdkafka that uses one topic. `kind` is producer or consumer."""

    def __init__(self, kind: int, options: Mapping[str, object], topic: str) -> None:
        self._library = library()
        error = ctypes.create_string_buffer(512)
        configuration = self._library.rd_kafka_conf_new()
        for name, value in options.items():
            if self._library.rd_kafka_conf_set(
                configuration, name.encode(), str(value).encode(), error, 512
            ):
                raise ClientFailed(f"librdkafka option {name}={value}: {error.value.decode()}")
        self._handle = self._library.rd_kafka_new(kind, configuration, error, 512)
        if not self._handle:
            raise ClientFailed(f"librdkafka creates no client: {error.value.decode()}")
        self._topic = self._library.rd_kafka_topic_new(self._handle, topic.encode(), None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._library.rd_kafka_topic_destroy(self._topic)
        self._library.rd_kafka_destroy(self._handle)


ANY_PARTITION: Final = -1


class Producer(_Client):
    """Sends values to one partition of a topic, or, with ANY_PARTITION, to all of them."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        values: Sequence[bytes],
        *,
        partition: int = 0,
        **options: object,
    ) -> None:
        """Create the client. `send` sends the `values` in turn. `options` are librdkafka's options,
        with underscores in place of dots."""
        self._partition = partition
        super().__init__(
            _PRODUCER,
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1024 * 1024,
                "batch.num.messages": 10_000,
                "batch.size": 1_000_000,
                **{name.replace("_", "."): value for name, value in options.items()},
            },
            topic,
        )
        self._buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
        self._messages = (_Message * len(values))()
        for message, buffer in zip(self._messages, self._buffers, strict=True):
            message.payload, message.len = ctypes.addressof(buffer), len(buffer)

    def __enter__(self) -> Producer:
        return self

    def send(self, count: int) -> None:
        """Queue `count` messages. The call blocks while librdkafka's queue is full."""
        while count:
            wanted = min(count, len(self._messages))
            queued = self._library.rd_kafka_produce_batch(
                self._topic, self._partition, 0, self._messages, wanted
            )
            count -= queued
            if queued < wanted:
                time.sleep(_QUEUE_FULL_PAUSE_SECONDS)

    def flush(self) -> None:
        """Wait until every queued message was acknowledged or has failed. The topic's log end
        offset then shows how many messages were stored."""
        if self._library.rd_kafka_flush(self._handle, FLUSH_MS_MAX):
            raise ClientFailed(f"messages were not acknowledged within {FLUSH_MS_MAX} ms")


class Consumer(_Client):
    """Reads partition 0 of a topic from `offset` on, without a consumer group."""

    def __init__(self, bootstrap: str, topic: str, offset: int, **options: object) -> None:
        super().__init__(
            _CONSUMER,
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "queued.min.messages": 1_000_000,
                **{name.replace("_", "."): value for name, value in options.items()},
            },
            topic,
        )
        self._ignore = ctypes.cast(ctypes.CDLL(None).labs, c_void_p)
        if self._library.rd_kafka_consume_start(self._topic, 0, offset):
            raise ClientFailed(f"topic {topic} cannot be consumed from offset {offset}")

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._library.rd_kafka_consume_stop(self._topic, 0)
        super().__exit__(kind, error, traceback)

    def skip(self, count: int) -> int:
        """Read at least `count` messages, and ignore their content. Return the number of messages
        read."""
        done, last_news = 0, time.monotonic()
        while done < count:
            got = self._library.rd_kafka_consume_callback(self._topic, 0, 100, self._ignore, None)
            if got > 0:
                done, last_news = done + got, time.monotonic()
            elif time.monotonic() - last_news > SILENCE_SECONDS_MAX:
                raise ClientFailed(f"only {done} of {count} messages arrived")
        return done

    def next_arrival(self, wait_ms: int) -> float | None:
        """Return the time at which the next message arrives (seconds of `time.perf_counter`); None
        if no message arrives within `wait_ms`, or its read fails."""
        message = self._library.rd_kafka_consume(self._topic, 0, wait_ms)
        arrived = time.perf_counter()
        if not message:
            return None
        failed = message.contents.err
        self._library.rd_kafka_message_destroy(message)
        return None if failed else arrived


# librdkafka's own benchmark

PROGRAM: Final = "rdkafka_performance"
PROGRAM_LINGER_MS: Final = 5
"""The linger.ms of the program's producer, which is also that of `Producer` in the race. The
program's default is 1,000 ms: it would spend that time before the last batch of each run."""
PROGRAM_VALUE: Final = b"librdkafka_performance testing!"
"""The text that the program repeats in each message. All its messages are equal."""
_PROGRAM_SECONDS_MAX: Final = 300.0
_SUMMARY: Final = re.compile(r"% (\d+) messages .*?: (\d+) msgs/s", re.DOTALL)


def program() -> str | None:
    """Return the path of `rdkafka_performance`; None if it is not on the PATH."""
    return shutil.which(PROGRAM)


def client_name() -> str:
    """Return what runs the rows of `rdkafka_performance`, and the version of the library."""
    version = confluent_kafka.libversion()[0]
    if program() is None:
        return f"librdkafka {version}, called in place of {PROGRAM}"
    return PROGRAM


def program_value(size: int) -> bytes:
    """Return the value of `size` bytes that rdkafka_performance sends."""
    return (PROGRAM_VALUE * (size // len(PROGRAM_VALUE) + 1))[:size]


def run_program(path: str, bootstrap: str, topic: str, count: int, *words: str) -> float:
    """Run the program at `path` with `count` messages and partition 0 of the topic. `words` say
    whether it produces or consumes. Return its messages a second.

    Raises ClientFailed if it fails, or handles fewer messages."""
    command = [path, *words, "-b", bootstrap, "-t", topic, "-p", "0", "-c", str(count)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=_PROGRAM_SECONDS_MAX, check=False
    )
    summaries = _SUMMARY.findall(ended.stdout)
    if ended.returncode or not summaries or int(summaries[-1][0]) < count:
        told = (ended.stdout + ended.stderr)[-1000:]
        raise ClientFailed(f"{' '.join(command)} ended with {ended.returncode}: {told}")
    return float(summaries[-1][1])
