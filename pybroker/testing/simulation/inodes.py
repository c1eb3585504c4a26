"""The files and directories of a simulated disk. Each has two contents: the one that processes see,
and the durable one.

A power loss makes a random part of the pending changes durable, but leaves no impossible file
system, such as a file with two names.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

SECTOR_BYTES: Final = 512
"""The smallest unit that a disk writes atomically."""


class Write(NamedTuple):
    """A write of bytes at a position of a file, not yet durable."""

    position: int
    data: bytes


class Cut(NamedTuple):
    """A change of a file's length to `size` bytes, not yet durable."""

    size: int


class FileNode:
    """A simulated file. Processes see `data`; the disk stores `durable`. `pending` has the changes
    between the two."""

    __slots__ = (
        "data",
        "durable",
        "home",
        "is_awaited",
        "is_linked",
        "is_locked",
        "modified_ms",
        "pending",
        "settled_at",
    )

    def __init__(self, modified_ms: int) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[Write | Cut] = []
        self.modified_ms = modified_ms
        self.home: tuple[DirectoryNode, str] | None = None
        """The directory and the name under which the disk stores the file; None if the disk does
        not store it yet."""
        self.settled_at = 0
        """The number of the last change of the file's name that has become durable; 0 if none
        has."""
        self.is_linked = True
        self.is_locked = False
        self.is_awaited = False
        """Whether a time is scheduled at which the pending changes become durable by themselves."""

    def write(self, position: int, data: bytes) -> int:
        """Write `data` at the byte `position`. Return the growth of the file in bytes."""
        held = self.data
        size = len(held)
        if position == size:
            held += data
        else:
            _overlay(held, position, data)
        self.pending.append(Write(position, data))
        return len(held) - size

    def cut(self, size: int) -> int:
        """Set the file's length to `size` bytes; new bytes are zeros. Return the growth of the file
        in bytes, negative for a shrunk file."""
        grown = size - len(self.data)
        _resize(self.data, size)
        self.pending.append(Cut(size))
        return grown

    def settle(self) -> None:
        """Make all pending changes of the content durable."""
        if self.pending:
            for change in self.pending:
                _apply(self.durable, change)
            self.pending.clear()

    def forget_pending(self) -> None:
        """Give up the pending changes: they never become durable, as on Linux after a failed sync.
        Processes still see the changes until the next boot."""
        self.pending.clear()

    def lose_power(self, rng: random.Random, kinds: tuple[str, ...]) -> str:
        """Apply a power loss: a random one of `kinds` selects the pending changes that become
        durable. The other pending changes are dropped. Return the kind, or "-" if no change was
        pending."""
        kind = rng.choice(kinds) if self.pending else "-"
        if kind == "all":
            self.settle()
        elif kind == "torn":
            self._tear(rng)
        elif kind == "holes":
            self._pierce(rng)
        elif kind == "mixed":
            self._mix(rng)
        self.pending.clear()
        self.data = bytearray(self.durable)
        return kind

    def _tear(self, rng: random.Random) -> None:
        """Make a random number of the oldest pending changes durable. If the next change is a
        write, also make a random number of its first sectors durable."""
        count = rng.randrange(len(self.pending) + 1)
        for change in self.pending[:count]:
            _apply(self.durable, change)
        if count < len(self.pending):
            change = self.pending[count]
            if isinstance(change, Write):
                parts = [*_sectors(change)]
                for part in parts[: rng.randrange(len(parts) + 1)]:
                    _apply(self.durable, part)

    def _pierce(self, rng: random.Random) -> None:
        """Make the new length of the file durable. Make only random sectors of the written bytes
        durable."""
        for change in self.pending:
            if isinstance(change, Cut):
                _apply(self.durable, change)
                continue
            for part in _sectors(change):
                if rng.random() < 0.7:
                    _apply(self.durable, part)
                else:
                    reach = part.position + len(part.data)
                    _resize(self.durable, max(len(self.durable), reach))

    def _mix(self, rng: random.Random) -> None:
        """Make random pending changes durable: some changes of the file's length, and some sectors
        of each write. If a truncation does not become durable but a later write does, old bytes may
        follow the new data."""
        for change in self.pending:
            if isinstance(change, Cut):
                if rng.random() < 0.5:
                    _apply(self.durable, change)
            else:
                for part in _sectors(change):
                    if rng.random() < 0.7:
                        _apply(self.durable, part)


def _sectors(change: Write) -> Iterator[Write]:
    """Yield the parts of a write, split at the borders of sectors."""
    done, data = 0, change.data
    while done < len(data):
        begin = change.position + done
        length = SECTOR_BYTES - begin % SECTOR_BYTES
        yield Write(begin, data[done : done + length])
        done += length


def _apply(content: bytearray, change: Write | Cut) -> None:
    if isinstance(change, Write):
        _overlay(content, change.position, change.data)
    else:
        _resize(content, change.size)


def _overlay(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        content += bytes(position - len(content))
    content[position : position + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content += bytes(size - len(content))


class Renaming(NamedTuple):
    """A rename, creation (`source` is None) or deletion (`target` is None), not yet durable.
    `source` and `target` are (directory, name). `number` gives the order of all name changes of the
    disk."""

    number: int
    node: FileNode | DirectoryNode
    source: tuple[DirectoryNode, str] | None
    target: tuple[DirectoryNode, str] | None
    displaced: FileNode | DirectoryNode | None
    """The node that had the target's name before the change."""

    def settle(self) -> None:
        """Make this change durable, unless a later change of the same file or directory is durable
        already."""
        node = self.node
        if node.settled_at >= self.number:
            return
        node.settled_at = self.number
        _take_home(node)
        if self.displaced is not None:
            _displace(self.displaced, self.number)
        if self.target is not None:
            directory, name = self.target
            made = directory.made
            came = self.source is not None and self.source[0] is not directory
            if came and directory.home is None and made is not None:
                made.settle()  # or the nodes that are moved into it would be lost with it
            other = directory.durable.get(name)
            if other is not None:
                _displace(other, self.number)
            directory.durable[name] = node
            node.home = self.target


def _take_home(node: FileNode | DirectoryNode) -> None:
    if node.home is not None:
        directory, name = node.home
        del directory.durable[name]
        node.home = None


def _displace(node: FileNode | DirectoryNode, number: int) -> None:
    """Remove the durable name of `node`, because the change `number` replaced this node by another.
    Earlier changes of the node's name can no longer become durable."""
    if node.settled_at < number:
        node.settled_at = number
        _take_home(node)


class DirectoryNode:
    """A simulated directory. Processes see `entries`; the disk stores `durable`. `pending` has the
    changes to `entries` that are not yet in `durable`."""

    __slots__ = (
        "durable",
        "entries",
        "home",
        "is_awaited",
        "is_linked",
        "made",
        "pending",
        "settled_at",
    )

    def __init__(self) -> None:
        self.entries: dict[str, FileNode | DirectoryNode] = {}
        self.durable: dict[str, FileNode | DirectoryNode] = {}
        self.pending: list[Renaming] = []
        self.made: Renaming | None = None
        """The change that created the directory; None for the root directory."""
        self.home: tuple[DirectoryNode, str] | None = None
        self.settled_at = 0
        self.is_linked = True
        self.is_awaited = False

    def settle(self) -> None:
        """Make all renames, creations and deletions in the directory durable."""
        for change in self.pending:
            change.settle()
        self.pending.clear()

    def nodes(self) -> Iterator[FileNode | DirectoryNode]:
        """Yield the files and directories that running processes see below this directory, at any
        depth."""
        for node in self.entries.values():
            yield node
            if isinstance(node, DirectoryNode):
                yield from node.nodes()

    def all_nodes(self) -> list[FileNode | DirectoryNode]:
        """Return this directory, and each node below it that is visible to processes, is durable,
        or has a pending change."""
        found: dict[int, FileNode | DirectoryNode] = {}
        waiting: list[FileNode | DirectoryNode] = [self]
        while waiting:
            node = waiting.pop()
            if id(node) in found:
                continue
            found[id(node)] = node
            if isinstance(node, DirectoryNode):
                waiting += [*node.entries.values(), *node.durable.values()]
                waiting += [change.node for change in node.pending]
        return [*found.values()]

    def return_to_durable(self) -> None:
        """Drop all pending changes here and below, as a power loss does: processes see the durable
        content."""
        self.pending.clear()
        self.entries = dict(self.durable)
        for node in self.entries.values():
            node.is_linked = True
            if isinstance(node, DirectoryNode):
                node.return_to_durable()


def lose_names(root: DirectoryNode, rng: random.Random) -> str:
    """Make some pending name changes durable, and drop the others. At random, the durable changes
    are either the oldest ones, as in a journaling file system, or a random selection of all
    changes. Return the choice as text for the trace."""
    directories = [node for node in root.all_nodes() if isinstance(node, DirectoryNode)]
    pending = {change.number: change for each in directories for change in each.pending}
    numbers = sorted(pending)
    in_order = rng.random() < 0.5
    upto = rng.randrange(len(numbers) + 1)
    share = rng.random()
    for place, number in enumerate(numbers):
        if place < upto if in_order else rng.random() < share:
            pending[number].settle()
    root.return_to_durable()
    return f"{upto}/{len(numbers)}" if in_order else f"each/{len(numbers)}"
