"""The command `pybroker consumer-groups`, equivalent to Kafka's kafka-consumer-groups, with the
messages of Kafka 3.9."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.group_offsets import CommittedOffset
from pybroker.client.admin.groups import GroupDescription, GroupListing
from pybroker.client.errors import ClientError, ResponseError
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.tools import _group_tables as tables
from pybroker.tools._cli import (
    Failure,
    Tool,
    bootstrap_option,
    client_options,
    config_file_option,
    format_option,
    run_async,
    write_json,
)
from pybroker.tools._group_options import (
    STATES,
    check_types,
    check_usage,
    parse_names,
    reset_of,
)
from pybroker.tools._group_reset import Plan, Reset, Resetter, csv_text, parse_topics

FAILED = "Error: Executing consumer group command failed due to "
NOTHING_LEFT = 2**63 - 1
"""For a partition without a committed offset, the tool requests the lag of this offset. The answer
then has the log end offset, and the lag 0."""
RESET_FORMAT = "{:<30} {:<30} {:<10} {:<15}"
DELETED_FORMAT = "{:<30} {:<15} {:<15}"


@click.command("consumer-groups", cls=Tool, error_prefix=FAILED)
@bootstrap_option()
@click.option("--list", is_flag=True, help="Print the names of all consumer groups.")
@click.option(
    "--describe", is_flag=True, help="Print the offsets, the members or the state of groups."
)
@click.option(
    "--delete",
    is_flag=True,
    help="Delete groups that have no members, with their committed offsets.",
)
@click.option(
    "--reset-offsets",
    is_flag=True,
    help="Compute new offsets for groups that have no members, and commit them with"
    " --execute. Without --execute, only print them.",
)
@click.option(
    "--delete-offsets",
    is_flag=True,
    help="Delete the group's committed offsets of the topics given with --topic.",
)
@click.option("--group", multiple=True, metavar="GROUP", help="A consumer group. May be repeated.")
@click.option("--all-groups", is_flag=True, help="All consumer groups, instead of --group.")
@click.option(
    "--topic",
    multiple=True,
    metavar="TOPIC[:0,1,...]",
    help="With --reset-offsets and --delete-offsets: a topic, or some of its partitions. May"
    " be repeated.",
)
@click.option(
    "--all-topics",
    is_flag=True,
    help="With --reset-offsets: all partitions for which the group has a committed offset.",
)
@click.option(
    "--offsets",
    is_flag=True,
    help="With --describe: print committed offsets and lag (the default).",
)
@click.option("--members", is_flag=True, help="With --describe: print the members.")
@click.option(
    "--state",
    is_flag=False,
    flag_value="",
    metavar="[STATE,...]",
    help="With --describe: print the state of each group. With --list: print the states;"
    " with a value, list only groups in one of these states: {', '.join(STATES)}.",
)
@click.option(
    "--type",
    is_flag=False,
    flag_value="",
    metavar="[TYPE,...]",
    help="With --list: print the types of groups. ZooKeeper-based brokers do not report types.",
)
@click.option(
    "--verbose",
    is_flag=True,
    help="With --members: also print the partitions assigned to each member.",
)
@click.option(
    "--lag-details",
    is_flag=True,
    help="With --offsets: also print the last stable offset, and the lag in bytes"
    " (estimated) and in seconds. Kafka's tool does not have this flag.",
)
@click.option("--to-earliest", is_flag=True, help="Reset to the log start offset.")
@click.option("--to-latest", is_flag=True, help="Reset to the log end offset.")
@click.option(
    "--to-current",
    is_flag=True,
    help="Reset to the committed offset; without a committed offset, to the log end offset.",
)
@click.option("--to-offset", type=int, help="Reset to this offset.")
@click.option(
    "--shift-by",
    type=int,
    help="Add this number of offsets to the committed offset; a negative number moves"
    " the offset back.",
)
@click.option(
    "--to-datetime",
    metavar="YYYY-MM-DDTHH:mm:SS.sss",
    help="Reset to the first record whose timestamp is this time or later. The time is UTC,"
    " or has a zone such as +02:00.",
)
@click.option(
    "--by-duration",
    metavar="PnDTnHnMnS",
    help="Reset to the first record that is not older than"
    " this duration, such as P1DT2H for 26 hours.",
)
@click.option(
    "--from-file",
    metavar="FILE",
    help="Reset to the offsets in a CSV file with lines group,topic,partition,offset, as"
    " --export prints them. For a single group, the lines may be topic,partition,offset.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="With --reset-offsets: print the new offsets, commit none (the default).",
)
@click.option("--execute", is_flag=True, help="With --reset-offsets: commit the new offsets.")
@click.option("--export", is_flag=True, help="With --reset-offsets: print the new offsets as CSV.")
@click.option(
    "--timeout",
    type=click.IntRange(min=1),
    default=5_000,
    metavar="MS",
    help="How long to wait for the response to each request, in ms. Default: 5000.",
)
@config_file_option("--command-config", "--admin.config")
@format_option()
def command(bootstrap_server: str, config_file: str | None, **flags: Any) -> None:
    """List, describe and delete consumer groups, and change their committed offsets."""
    check_usage(flags)
    reset = reset_of(flags) if flags["reset_offsets"] else Reset()
    options = client_options(bootstrap_server, config_file, client_id="consumer-groups")

    async def work() -> None:
        async with Admin(**options) as admin:
            groups = Groups(admin, flags)
            if flags["list"]:
                await groups.list()
            elif flags["describe"]:
                await groups.describe()
            elif flags["delete"]:
                await groups.delete()
            elif flags["delete_offsets"]:
                await groups.delete_offsets()
            else:
                await groups.reset(reset)

    run_async(work())


class Groups:
    """The actions of the command line."""

    def __init__(self, admin: Admin, flags: Mapping[str, Any]) -> None:
        self._admin = admin
        self._flags = flags
        self._timeout_ms: int = flags["timeout"]
        self._as_json = flags["output_format"] == "json"
        self._in_line = False

    async def list(self) -> None:
        """Print the groups. Raises PybrokerError, click.UsageError."""
        types, states = self._flags["type"], self._flags["state"]
        wanted = parse_names(states or "", STATES, "state")
        check_types(types or "")
        groups = await self._listed(wanted)
        if self._as_json:
            for group in groups:
                write_json(tables.listing_document(group))
        elif types is None and states is None:
            for group in groups:
                click.echo(group.group_id)
        else:
            has_types, has_states = types is not None, states is not None
            for line in tables.group_list(groups, types=has_types, states=has_states):
                click.echo(line)

    async def describe(self) -> None:
        """Print the offsets, members or state of groups. Raises PybrokerError."""
        groups = await self._described(sorted(await self._chosen()))
        if self._flags["members"]:
            for group in groups.values():
                self._show_members(group)
        elif self._flags["state"] is not None:
            for group in groups.values():
                self._show_state(group)
        else:
            found = await self._admin.committed_offsets(
                dict.fromkeys(groups), timeout_ms=self._timeout_ms
            )
            for group in groups.values():
                await self._show_offsets(group, found[group.group_id].check().offsets)
            if self._in_line:
                click.echo()

    async def _show_offsets(
        self, group: GroupDescription, committed: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        details = self._as_json or self._flags["lag_details"]
        read = {key for member in group.members for key in member.partitions()}
        wanted = dict.fromkeys(sorted(read), NOTHING_LEFT)
        wanted |= {key: row.offset for key, row in committed.items()}
        lags = await self._admin.partition_lag(wanted, details=details, timeout_ms=self._timeout_ms)
        for key, lag in lags.items():
            if lag.error is not None:
                click.echo(f"partition {key}: {lag.error}", err=True)
        rows = tables.offset_rows(group, committed, lags)
        if self._as_json:
            for row in rows:
                write_json(tables.offset_document(group, row))
            return
        if group.state == "Dead":
            self._in_line = False
        if tables.show_state(group, len(rows)):
            # Kafka's tool prints the line break after a group only before the next group.
            lines = tables.offset_lines(group.group_id, rows, details=details)
            click.echo("\n" + "\n".join(lines), nl=False)
            self._in_line = True

    def _show_members(self, group: GroupDescription) -> None:
        if self._as_json:
            for member in group.members:
                write_json(tables.member_document(group, member))
            return
        shown = tables.show_state(group, len(group.members))
        lines = tables.member_lines(group, verbose=self._flags["verbose"], shown=shown)
        click.echo("\n" + "\n".join(lines))

    def _show_state(self, group: GroupDescription) -> None:
        if self._as_json:
            write_json(tables.state_document(group))
        elif tables.show_state(group, 1):
            click.echo("\n" + "\n".join(tables.state_lines(group)))

    async def delete(self) -> None:
        """Delete the groups that the options choose, and print the result. Raises PybrokerError."""
        results = await self._admin.delete_groups(await self._chosen(), timeout_ms=self._timeout_ms)
        if self._as_json:
            for name, problem in results.items():
                write_json({"group": name, "error": None if problem is None else str(problem)})
            return
        failed = {name: error for name, error in results.items() if error is not None}
        deleted = [name for name in results if name not in failed]
        if not failed:
            click.echo(
                f"Deletion of requested consumer groups ('{', '.join(deleted)}') was successful."
            )
            return
        click.echo("\nError: Deletion of some consumer groups failed:")
        for name, error in failed.items():
            click.echo(f"* Group '{name}' could not be deleted due to: {error}")
        if deleted:
            names = ", ".join(f"'{name}'" for name in deleted)
            click.echo(f"\nThese consumer groups were deleted successfully: {names}")
        await self._print_active_members(
            name for name, error in failed.items() if _code(error) == ErrorCode.NON_EMPTY_GROUP
        )

    async def delete_offsets(self) -> None:
        """Delete a group's committed offsets of topics. Raises PybrokerError, click.UsageError."""
        name, words = self._flags["group"][0], self._flags["topic"]
        wanted = parse_topics(words)
        outcomes: dict[TopicPartition, ClientError | None] = {}
        unnamed = [topic for topic, numbers in wanted.items() if numbers is None]
        known = await self._admin.describe_topics(unnamed)
        partitions = []
        for topic, numbers in wanted.items():
            if numbers is None and known[topic].error != ErrorCode.NONE:
                outcomes[TopicPartition(topic, -1)] = ResponseError(known[topic].error)
                continue
            for number in known[topic].partitions if numbers is None else numbers:
                partitions.append(TopicPartition(topic, number))
        refusal: ClientError | None = None
        try:
            outcomes |= await self._admin.delete_offsets(
                name, partitions, timeout_ms=self._timeout_ms
            )
            refusal = next((outcomes[key] for key in partitions if outcomes[key]), None)
        except ResponseError as error:
            refusal = error
            outcomes |= dict.fromkeys(partitions, error)
        self._show_deleted(name, words, refusal, outcomes)
        if _code(refusal) in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
            await self._print_active_members([name])

    def _show_deleted(
        self,
        name: str,
        words: Sequence[str],
        refusal: ClientError | None,
        outcomes: Mapping[TopicPartition, ClientError | None],
    ) -> None:
        rows = sorted(outcomes.items(), key=lambda item: (item[0].topic, item[0].partition))
        if self._as_json:
            for (topic, number), error in rows:
                partition = number if number >= 0 else None
                text = None if error is None else str(error)
                write_json({"group": name, "topic": topic, "partition": partition, "error": text})
            return
        if refusal is None:
            click.echo(
                f"Request succeed for deleting offsets with topic {', '.join(words)} group {name}"
            )
        else:
            click.echo(f"\nError: {_deletion_refused(name, refusal)}")
        click.echo("\n" + DELETED_FORMAT.format("TOPIC", "PARTITION", "STATUS"))
        for (topic, number), error in rows:
            status = "Successful" if error is None else f"Error: :{error}"
            shown = str(number) if number >= 0 else "Not Provided"
            click.echo(DELETED_FORMAT.format(topic, shown, status))

    async def reset(self, reset: Reset) -> None:
        """Compute new offsets, print them, and commit them with --execute. Raises PybrokerError,
        click.UsageError."""
        resetter = Resetter(self._admin, reset, self._timeout_ms)
        plans: dict[str, Plan] = {}
        active = []
        for name, group in (await self._described(await self._chosen())).items():
            if group.state not in ("Empty", "Dead"):
                active.append(name)
                plans[name] = {}
                click.echo(
                    f"\nError: Assignments can only be reset if the group '{name}' is inactive,"
                    f" but the current state is {group.state}.",
                    err=self._as_json,
                )
                continue
            plans[name] = await resetter.plan(name)
            if self._flags["execute"] and plans[name]:
                await self._commit(name, plans[name])
        self._show_plans(plans)
        await self._print_active_members(active)

    async def _commit(self, name: str, plan: Plan) -> None:
        outcomes = await self._admin.alter_offsets(
            name,
            {key: CommittedOffset(offset) for key, offset in plan.items()},
            timeout_ms=self._timeout_ms,
        )
        failed = [f"{key}: {error}" for key, error in outcomes.items() if error is not None]
        if failed:
            raise Failure(
                f"the offsets of group '{name}' were not committed for these"
                f" partitions: {'; '.join(failed)}"
            )

    def _show_plans(self, plans: Mapping[str, Plan]) -> None:
        rows = [(name, key, offset) for name, plan in plans.items() for key, offset in plan.items()]
        if self._flags["export"]:
            click.echo(csv_text(plans, with_group=len(self._flags["group"]) != 1))
        elif self._as_json:
            for name, (topic, number), offset in rows:
                write_json(
                    {"group": name, "topic": topic, "partition": number, "newOffset": offset}
                )
        else:
            if plans:
                click.echo("\n" + RESET_FORMAT.format("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"))
            for name, (topic, number), offset in rows:
                click.echo(RESET_FORMAT.format(name, topic, number, offset))

    async def _chosen(self) -> Sequence[str]:
        if self._flags["all_groups"]:
            return [group.group_id for group in await self._listed([])]
        return list(dict.fromkeys(self._flags["group"]))

    async def _listed(self, states: Sequence[str]) -> Sequence[GroupListing]:
        found = await self._admin.list_groups(states, timeout_ms=self._timeout_ms)
        return [group for group in found.check().groups if group.is_consumer]

    async def _described(self, names: Sequence[str]) -> dict[str, GroupDescription]:
        found = await self._admin.describe_groups(names, timeout_ms=self._timeout_ms)
        for name, group in found.items():
            if not group.check().is_consumer:
                raise Failure(f"GroupId {name} is not a consumer group ({group.protocol_type}).")
        return found

    async def _print_active_members(self, names: Iterable[str]) -> None:
        """Print the members of these groups on standard error. The coordinator has refused a
        deletion or a change of offsets because of these members."""
        chosen = list(names)
        if not chosen:
            return
        found = await self._admin.describe_groups(chosen, timeout_ms=self._timeout_ms)
        for group in found.values():
            for line in tables.active_member_lines(group):
                click.echo(line, err=True)


def _code(error: ClientError | None) -> ErrorCode:
    return error.code if isinstance(error, ResponseError) else ErrorCode.NONE


def _deletion_refused(name: str, refusal: ClientError) -> str:
    """Return Kafka's message for offsets that could not be deleted."""
    code = _code(refusal)
    sentences = {
        ErrorCode.INVALID_GROUP_ID: f"'{name}' is not valid.",
        ErrorCode.GROUP_ID_NOT_FOUND: f"'{name}' does not exist.",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: f"Access to '{name}' is not authorized.",
        ErrorCode.NON_EMPTY_GROUP: f"Deleting offsets of a consumer group '{name}' is forbidden"
        " if the group is not empty.",
        **dict.fromkeys(
            (
                ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ),
            "Encounter some partition level error, see the follow-up details:",
        ),
    }
    return sentences.get(code, f"Encounter some unknown error: {refusal}")
