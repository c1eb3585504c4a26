"""Checks the flags of `consumer-groups`, with the messages of Kafka 3.9."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from pybroker.tools._cli import Failure
from pybroker.tools._group_reset import (
    Reset,
    parse_datetime,
    parse_duration,
    parse_plans,
    parse_topics,
)

ACTIONS = ("list", "describe", "delete", "reset_offsets", "delete_offsets")
SCENARIOS = (
    "to_offset",
    "shift_by",
    "to_datetime",
    "by_duration",
    "to_earliest",
    "to_latest",
    "to_current",
    "from_file",
)
STATES = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
)
TYPES = ("Consumer", "Classic")
ONLY_WITH: Mapping[str, tuple[str, ...]] = {
    "members": ("describe",),
    "verbose": ("describe",),
    "offsets": ("describe",),
    "lag_details": ("describe",),
    "state": ("describe", "list"),
    "type": ("list",),
}
"""Flag -> the actions that accept the flag."""
NOT_EXECUTED = (
    "WARN: No action will be performed as the --execute option is missing."
    "In a future major release, the default behavior of this command will be to prompt the user"
    " before executing the reset rather than doing a dry run. You should add the --dry-run option"
    " explicitly if you are scripting this command and want to keep the current default behavior"
    " without prompting."
)


def check_usage(flags: Mapping[str, Any]) -> None:
    """Raise click.UsageError, with Kafka's message, for missing or contradicting flags."""
    given = {name for name, value in flags.items() if value not in (None, False, ())}
    for name, actions in ONLY_WITH.items():
        if name in given and not given & set(actions):
            raise click.UsageError(
                f"Option(s) [{_flag(name)}] are unavailable given other options on the command line"
            )
    chosen = bool(given & {"group", "all_groups"})
    if "describe" in given:
        _check_describe(given, flags, chosen)
    if "delete" in given:
        if not chosen:
            raise _needs("delete", ("group", "all_groups"))
        if "topic" in given:
            raise click.UsageError(
                "The consumer does not support topic-specific offset deletion from a consumer"
                " group."
            )
    if "delete_offsets" in given and not {"group", "topic"} <= given:
        raise _needs("delete_offsets", ("group", "topic"), "takes the following options")
    if "reset_offsets" in given:
        _check_reset(given, chosen)
    _exclude(given, "group", ("all_groups", "list"))
    _exclude(given, "topic", ("list", "describe"))
    if len(given & set(ACTIONS)) != 1:
        words = ", ".join(f"--{_flag(name)}" for name in ACTIONS)
        raise click.UsageError(f"Command must include exactly one action: {words}")
    if "delete_offsets" in given and len(flags["group"]) > 1:
        raise click.UsageError(
            "Found multiple arguments for option group, but you asked for only one"
        )


def _check_describe(given: set[str], flags: Mapping[str, Any], chosen: bool) -> None:
    if not chosen:
        raise _needs("describe", ("group", "all_groups"))
    forms = ("members", "offsets", "state")
    if len(given & set(forms)) > 1:
        raise _needs("describe", forms, "takes at most one of these options")
    if flags["state"]:
        raise click.UsageError("Option [describe] does not take a value for [state]")


def _check_reset(given: set[str], chosen: bool) -> None:
    if {"dry_run", "execute"} <= given:
        raise click.UsageError("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if not given & {"dry_run", "execute"}:
        click.echo(NOT_EXECUTED, err=True)
    if not chosen:
        raise _needs("reset_offsets", ("group", "all_groups"))
    for name in SCENARIOS:
        _exclude(given, name, tuple(other for other in SCENARIOS if other != name))
    if not given & {"all_topics", "topic", "from_file"}:
        raise click.UsageError("One of the reset scopes should be defined: --all-topics, --topic.")
    if not given & set(SCENARIOS):
        words = ", ".join(f"[{_flag(name)}]" for name in SCENARIOS)
        raise click.UsageError(
            f"Option '[reset-offsets]' requires one of the following scenarios: [{words}]"
        )


def _needs(
    action: str, names: Sequence[str], how: str = "takes one of these options"
) -> click.UsageError:
    words = ", ".join(f"[{_flag(name)}]" for name in names)
    return click.UsageError(f"Option [{_flag(action)}] {how}: {words}")


def _exclude(given: set[str], name: str, others: Sequence[str]) -> None:
    for other in others:
        if name in given and other in given:
            raise click.UsageError(
                f'Option "[{_flag(name)}]" can\'t be used with option "[{_flag(other)}]"'
            )


def _flag(name: str) -> str:
    return name.replace("_", "-")


def reset_of(flags: Mapping[str, Any]) -> Reset:
    """Return the parsed flags of `consumer-groups --reset-offsets`. Raises Failure,
    click.UsageError."""
    timestamp = None
    if flags["to_datetime"] is not None:
        timestamp = parse_datetime(flags["to_datetime"])
    elif flags["by_duration"] is not None:
        timestamp = time.time_ns() // 1_000_000 - parse_duration(flags["by_duration"])
    path = flags["from_file"]
    parse_topics(flags["topic"])  # raises for a wrong word before any request is sent
    return Reset(
        to_earliest=flags["to_earliest"],
        to_latest=flags["to_latest"],
        to_current=flags["to_current"],
        to_offset=flags["to_offset"],
        shift_by=flags["shift_by"],
        to_timestamp=timestamp,
        from_file=None if path is None else parse_plans(path, flags["group"]),
        all_topics=flags["all_topics"],
        topics=flags["topic"],
    )


def parse_names(text: str, known: Sequence[str], what: str) -> list[str]:
    """Return the names in the comma-separated `text`, spelled as in `known`. Upper and lower case
    do not matter in `text`. `what` names their kind in the message, such as "types". Raises
    click.UsageError for an unknown name."""
    spelling = {name.upper(): name for name in known}
    words = [word.strip().upper() for word in text.split(",")] if text else []
    if not spelling.keys() >= set(words):
        raise click.UsageError(
            f"Invalid {what} list '{text}'. Valid {what.rstrip('s')}s are: {', '.join(known)}"
        )
    return [spelling[word] for word in dict.fromkeys(words)]


def check_types(text: str) -> None:
    """Raise Failure for a filter by group type: the filter needs ListGroups version 5, but the
    brokers have version 4. Raises click.UsageError for an unknown type."""
    if parse_names(text, TYPES, "types"):
        raise Failure(
            "The broker only supports ListGroups v4, but we need v5 or newer to request groups by"
            " type."
        )
