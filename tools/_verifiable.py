"""The form of the events that `verifiable-producer` and `verifiable-consumer` print."""

from __future__ import annotations

import json
import time

import click


def print_event(name: str, **fields: object) -> None:
    """Print one line on standard output: the time in ms since 1970, the event's name, its
    fields."""
    event = {"timestamp": time.time_ns() // 1_000_000, "name": name, **fields}
    click.echo(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
