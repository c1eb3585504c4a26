"""Measures the speed of encoding and decoding records, by the compiled module and in pure Python,
in the same run.

    python benchmarks/records_speed.py [RECORDS]

The program prints nanoseconds per record (the best of several rounds), and how many times faster
the compiled module is. Only this ratio can be compared with another machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import ModuleType

from pybroker.records import _pure, _pure_record_buffer
from pybroker.records.batch import TimestampType
from pybroker.records.record import Record

try:
    from pybroker.records import _speedups
except ImportError:
    sys.exit("the compiled module is missing: python setup.py build_ext --inplace")

ROUNDS = 7
NOW_MS = 1_700_000_000_000
SHAPES = {
    "100 B value, key": (b"key-0001", bytes(100), ()),
    "1 KiB value, no key": (None, bytes(1024), ()),
    "100 B, key, 2 headers": (b"key-0001", bytes(100), (("trace", b"0123"), ("kind", None))),
}


def best_ns(action: Callable[[], object], count: int) -> float:
    """Call `action`, which processes `count` records, in several rounds. Return the nanoseconds per
    record of the fastest round."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        action()
        times.append(time.perf_counter_ns() - start)
    return min(times) / count


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    print(f"{'':34}{'pure':>10}{'compiled':>10}{'ratio':>8}   (ns a record)")
    for shape, (key, value, headers) in SHAPES.items():

        def encode(
            module: ModuleType,
            key: bytes | None = key,
            value: bytes = value,
            headers: tuple[tuple[str, bytes | None], ...] = headers,
        ) -> bytearray:
            buffer = (_pure_record_buffer if module is _pure else module).RecordBuffer()
            for delta in range(count):
                buffer.append(NOW_MS + delta, key, value, headers, 1 << 40)
            encoded: bytearray = buffer.encoded()
            return encoded

        data = bytes(encode(_pure))
        if encode(_speedups) != data:
            sys.exit("the compiled and the Python implementation give different results")

        def decode(module: ModuleType, data: bytes = data) -> object:
            return module.read_records(
                data, count, 0, count - 1, NOW_MS, None, TimestampType.CREATE_TIME, Record
            )

        def scan(module: ModuleType, data: bytes = data) -> object:
            return module.scan_records(data, count)

        for name, action in (("encode", encode), ("decode", decode), ("scan", scan)):
            pure = best_ns(lambda action=action: action(_pure), count)  # type: ignore[misc]
            fast = best_ns(lambda action=action: action(_speedups), count)  # type: ignore[misc]
            print(f"{name + ', ' + shape:34}{pure:10.0f}{fast:10.0f}{pure / fast:8.1f}")


if __name__ == "__main__":
    main()
