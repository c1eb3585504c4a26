"""Produces the data of the examples to the topics flights, stocks and birdstrikes:

    npm install vega-datasets@3.2.1
    python -m pybroker.spark.examples.load node_modules/vega-datasets/data

The values are JSON objects.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from pybroker.client import Admin, NewTopic, Producer
from pybroker.errors import ErrorCode, PybrokerError

Row: TypeAlias = tuple[str, Mapping[str, object]]
"""The key of a record, and its value, which is sent as JSON."""

PARTITIONS: Final = 3


def flights(folder: Path) -> Iterator[Row]:
    """Yield 20,000 flights within the United States in the first quarter of 2001."""
    for row in json.loads((folder / "flights-20k.json").read_text("utf-8")):
        yield row["origin"], row


def stocks(folder: Path) -> Iterator[Row]:
    """Yield the price of five stocks at the beginning of each month from 2000 to 2010."""
    for row in _csv(folder / "stocks.csv"):
        yield row["symbol"], {**row, "price": float(row["price"])}


def birdstrikes(folder: Path) -> Iterator[Row]:
    """Yield 10,000 collisions of aircraft with birds. The aircraft's speed is often unknown."""
    for row in _csv(folder / "birdstrikes.csv"):
        value: dict[str, object] = {name: text or None for name, text in row.items()}
        for name in ("Cost Other", "Cost Repair", "Cost Total $", "Speed IAS in knots"):
            value[name] = int(row[name]) if row[name] else None
        yield row["Airport Name"], value


DATA: Final[Mapping[str, Callable[[Path], Iterator[Row]]]] = {
    "flights": flights,
    "stocks": stocks,
    "birdstrikes": birdstrikes,
}


async def load(bootstrap: str, folder: Path, names: Sequence[str] = tuple(DATA)) -> dict[str, int]:
    """Append each data set to its topic. Return the numbers of records. Raises ClientError if the
    brokers refuse the records, OSError if a file is missing."""
    counts = {}
    async with Admin(bootstrap) as admin:
        for result in await admin.create_topics([NewTopic(name, PARTITIONS) for name in names]):
            if result.error is None or result.error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                result.check()
    async with Producer(bootstrap, linger_ms=20, compression_type="lz4") as producer:
        for name in names:
            deliveries = [
                await producer.send(name, json.dumps(value).encode(), key=key.encode())
                for key, value in DATA[name](folder)
            ]
            await asyncio.gather(*deliveries)
            counts[name] = len(deliveries)
    return counts


def main(words: Sequence[str]) -> int:
    """Run the script. Return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pybroker.spark.examples.load",
        description="Send the data sets of the examples to topics with the same names.",
    )
    parser.add_argument("folder", type=Path, help="node_modules/vega-datasets/data")
    parser.add_argument(
        "--bootstrap-server",
        default=os.environ.get("BOOTSTRAP", "127.0.0.1:9092"),
        metavar="HOST:PORT",
        help="brokers to contact first, as HOST:PORT; default: $BOOTSTRAP, as in the jobs",
    )
    parser.add_argument(
        "--only",
        choices=list(DATA),
        action="append",
        help="send only this data set; may be repeated; default: all",
    )
    given = parser.parse_args(words)
    try:
        counts = asyncio.run(load(given.bootstrap_server, given.folder, given.only or list(DATA)))
    except (OSError, PybrokerError) as error:
        print(f"load: {error}", file=sys.stderr)
        return 1
    for name, count in counts.items():
        print(f"{name}: {count} records")
    return 0


def _csv(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
