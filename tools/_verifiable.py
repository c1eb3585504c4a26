"""Prints the JSON events of `verifiable-producer` and `verifiable-consumer`."""

from __future__ import annotations

import json
import time

import click


def print_event(name: str, **fields: object) -> None:
    """Print one event as a JSON line: the time in ms since 1970, the event's name, and its
    fields."""
    event = {"timestamp": time.time_ns() // 1_000_000, "name": name, **fields}
    click.echo(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
