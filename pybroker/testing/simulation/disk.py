"""The disk of a simulated machine. Processes use the disk through a `DiskView`.

A change is visible at once, and durable later (`inodes.py`). From a crash point on, every operation
of the process raises `ProcessKilled`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from pybroker.ports import Clock
from pybroker.testing.simulation.disk_faults import CrashPoint, DiskFaults, When, os_error
from pybroker.testing.simulation.environment import WALL_MS_AT_START, Environment
from pybroker.testing.simulation.inodes import DirectoryNode, FileNode, Renaming, lose_names
from pybroker.testing.simulation.machine import Machine

KINDS_OF_LOSS: Final = ("none", "all", "torn", "torn", "holes", "mixed")
"""The possible fates of a file's pending changes at a power loss; see `FileNode.lose_power`."""
_FREE_BYTES: Final = 1 << 40
_WRITE_BACK_S_LEAST: Final = 0.5
_WRITE_BACK_S_MOST: Final = 30.0


class SimDisk:
    """A simulated disk. Faults can be set for `read` and for the operations that change something:
    `create`, `append`, `write`, `truncate`, `sync`, `rename`, `delete`, `make directory` and `sync
    directory`."""

    def __init__(self, environment: Environment, name: str, *, clock: Clock | None = None) -> None:
        self.environment = environment
        self.name = name
        self._clock = clock
        self.root = DirectoryNode()
        self.capacity: int | None = None
        """The number of bytes that all files together may have; None means unlimited."""
        self.used_bytes = 0
        self.miss_probability = 0.05
        """The probability that `pread_cached` finds that its bytes are not in memory."""
        self.kinds_of_loss: tuple[str, ...] = KINDS_OF_LOSS
        self.writes_back = True
        """Whether pending changes become durable by themselves after a while."""
        self.slow_s = 0.0
        """The maximum extra delay in seconds of a call that waits for the disk."""
        self.faults = DiskFaults()
        self._changes = 0
        self._flipped: dict[tuple[int, int], tuple[FileNode, int, int]] = {}
        """The flipped bytes, by the id of the file's node and the position: the node, and the old
        and the new value of the byte."""
        self.on_process_end: list[Callable[[], object]] = []
        """Functions that are called once when the present process ends, and are then forgotten."""
        self.luck = environment.rng(f"cache of disk {name}").random
        self._rng = environment.rng(f"disk {name}")
        self._power = environment.rng(f"power of disk {name}")

    @classmethod
    def of_machine(cls, machine: Machine) -> SimDisk:
        """Return a new disk of the machine. The machine tells the disk when a process ends and when
        the power is lost."""
        disk = cls(machine.environment, machine.name, clock=machine.clock)
        machine.on_stop.append(lambda heard: disk.process_ended())
        machine.on_power_loss.append(disk.lose_power)
        return disk

    # processes and power

    def process_ended(self) -> None:
        """Release the file locks of the process. Remove the crash point (the disk operation at
        which the process was to be killed)."""
        self.faults.spare()
        ends, self.on_process_end = self.on_process_end, []
        for end in ends:
            end()

    def lose_power(self) -> None:
        """Lose power: of the changes that are not yet durable, a random part survives and the rest
        is lost."""
        self.process_ended()
        files = [node for node in self.root.all_nodes() if isinstance(node, FileNode)]
        kinds = [node.lose_power(self._power, self.kinds_of_loss) for node in files]
        names = lose_names(self.root, self._power)
        self.used_bytes = 0
        for node in self.root.nodes():
            if isinstance(node, FileNode):
                node.is_locked = False
                self.used_bytes += len(node.data)
        self.environment.note(f"{self.name} loses power names {names} files {' '.join(kinds)}")

    def delay_s(self) -> float:
        """Return the seconds that the next disk call takes, for `LoopBlocking.delay_s`."""
        return self._rng.random() * (0.001 + self.slow_s)

    # faults

    def kill_at(
        self, when: When, action: Callable[[], object], *, after_bytes: int = 0
    ) -> CrashPoint:
        """Kill the process at the operation `when` (see `CrashPoint`): `action()` marks the process
        as dead, and the operation raises ProcessKilled."""
        return self.faults.kill_at(when, action, after_bytes)

    def fail(
        self, operation: str, part: str = "", *, times: int = 1, number: int = errno.EIO
    ) -> None:
        """Make the next `times` operations named `operation`, on paths that contain `part`, fail
        with the error `number`. After a failed sync the file's changes never become durable, as on
        Linux."""
        self.faults.fail(operation, part, times, number)

    def mend(self) -> None:
        """Remove all faults, the capacity limit and the extra delay. Lost data stays lost."""
        self.faults.forget()
        self.capacity = None
        self.slow_s = 0.0

    def replace_medium(self) -> None:
        """Replace the disk by an empty one. The machine must have no running process."""
        self.process_ended()
        self.root = DirectoryNode()
        self.used_bytes = 0
        self.environment.note(f"{self.name} is replaced")

    def flip(self, path: str, bit: int) -> None:
        """Flip one bit of a file, on the disk and in the cache. Raises FileNotFoundError if `path`
        is no file, and IndexError if the bit is after the end of the file."""
        node = self.find(path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, f"{path} is no file of the disk {self.name}")
        node.settle()
        place, was = bit // 8, node.data[bit // 8]
        for content in (node.data, node.durable):
            if place < len(content) or content is node.data:
                content[place] ^= 1 << bit % 8
        _, right, _ = self._flipped.get((id(node), place), (node, was, was))
        self._flipped[id(node), place] = node, right, node.data[place]
        self.environment.note(f"{self.name} flips {path} bit {bit}")

    def flip_random(self, ending: str) -> tuple[str, int] | None:
        """Flip a random bit of a random file whose name ends with `ending`. Return the path and the
        bit's position in the file, or None if no such file has content."""
        paths = [path for path, node in self.files() if path.endswith(ending) and node.data]
        if not paths:
            return None
        path = paths[self._rng.randrange(len(paths))]
        node = self.find(path)
        assert isinstance(node, FileNode)
        bit = self._rng.randrange(len(node.data) * 8)
        self.flip(path, bit)
        return path, bit

    def flipped(self) -> list[str]:
        """Return the paths of the files that still have a wrong bit because of `flip`."""
        there = [
            node
            for (_, place), (node, right, wrong) in self._flipped.items()
            if place < len(node.data) and right != wrong == node.data[place]
        ]
        if not there:
            return []
        return [path for path, found in self.files() if any(found is node for node in there)]

    def files(self) -> list[tuple[str, FileNode]]:
        """Return the path and the node of every file, sorted by path."""
        found: list[tuple[str, FileNode]] = []
        waiting = [("", self.root)]
        while waiting:
            path, directory = waiting.pop()
            for name, node in directory.entries.items():
                if isinstance(node, FileNode):
                    found.append((f"{path}/{name}", node))
                else:
                    waiting.append((f"{path}/{name}", node))
        return sorted(found, key=lambda each: each[0])

    # names

    def find(self, path: str) -> FileNode | DirectoryNode | None:
        """Return the file or directory at `path`, None if it does not exist."""
        try:
            return self.walk(path)
        except OSError:
            return None

    def walk(self, path: str) -> FileNode | DirectoryNode:
        """Return the file or directory at `path`. Raises OSError if it does not exist."""
        node: FileNode | DirectoryNode = self.root
        for name in path.split("/"):
            if not name:
                continue
            if isinstance(node, FileNode):
                raise os_error(errno.ENOTDIR)
            found = node.entries.get(name)
            if found is None:
                raise os_error(errno.ENOENT)
            node = found
        return node

    def parent(self, path: str) -> tuple[DirectoryNode, str]:
        """Return the directory that contains `path`, and the last name in the path. Raises OSError
        if the directory does not exist."""
        before, _, name = path.rstrip("/").rpartition("/")
        directory = self.walk(before)
        if isinstance(directory, FileNode):
            raise os_error(errno.ENOTDIR)
        return directory, name

    def change_names(
        self,
        node: FileNode | DirectoryNode,
        source: tuple[DirectoryNode, str] | None,
        target: tuple[DirectoryNode, str] | None,
    ) -> None:
        """Move `node` from `source` to `target`, each a directory and a name. `source` None creates
        the node, `target` None deletes it. The change is durable after a sync."""
        self._changes += 1
        displaced = None
        if source is not None:
            del source[0].entries[source[1]]
        if target is not None:
            displaced = target[0].entries.get(target[1])
            target[0].entries[target[1]] = node
        change = Renaming(self._changes, node, source, target, displaced)
        if source is None and isinstance(node, DirectoryNode):
            node.made = change
        gone = displaced if target is not None else node
        if gone is not None:
            gone.is_linked = False
            if isinstance(gone, FileNode):
                self.used_bytes -= len(gone.data)
        for directory in {id(place[0]): place[0] for place in (source, target) if place}.values():
            directory.pending.append(change)
            self.await_write_back(directory)

    # background write-back

    def await_write_back(self, node: FileNode | DirectoryNode) -> None:
        if self.writes_back and not node.is_awaited:
            node.is_awaited = True
            span_s = _WRITE_BACK_S_MOST - _WRITE_BACK_S_LEAST
            due_s = _WRITE_BACK_S_LEAST + self._rng.random() * span_s
            self.environment.after(due_s, self._write_back, node)

    def _write_back(self, node: FileNode | DirectoryNode) -> None:
        node.is_awaited = False
        if self.writes_back:
            node.settle()

    def free_bytes(self) -> int:
        limit = _FREE_BYTES if self.capacity is None else self.capacity
        return max(0, limit - self.used_bytes)

    def wall_ms(self) -> int:
        clock = self._clock
        if clock is None:
            return WALL_MS_AT_START + int(self.environment.now * 1000)
        return clock.wall_ms()
