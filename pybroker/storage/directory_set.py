"""The log directories of one broker together: which can be used, and which are gone.

Every directory has an id (`directory.id` in `meta.properties`) and knows those of the others, so
that a directory that is lost as a whole is missed: its partitions must not be opened empty.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pybroker.errors import StartupError, StorageError
from pybroker.model import TopicPartition, encode_uuid
from pybroker.ports import Disk, Rng
from pybroker.storage import meta
from pybroker.storage.directory import LogDirectory, UnusableDirectory
from pybroker.storage.filename import ACCEPTED_LOSS

_logger = logging.getLogger(__name__)
_SHOWN_MAX: Final = 3


class DirectorySet:
    """Life: `lock`, `check`, `settle`, and `unlock` at the end. A directory that cannot be used is
    offline (its `failure` says why) as long as there is another."""

    def __init__(
        self, paths: Iterable[str], disk: Disk, foreign_names: frozenset[str] = frozenset()
    ) -> None:
        self.all: Sequence[LogDirectory] = [
            LogDirectory(path, disk, foreign_names) for path in normalized(paths)
        ]
        self.lost: Mapping[str, str] = {}
        """Directories that held data of this broker and are not there: id -> path."""
        self.given_up: Mapping[str, str] = {}
        """Those of which the operator accepted the loss, until nobody counts on what they held: id
        -> path."""
        self._family = meta.Family()

    def usable(self) -> list[LogDirectory]:
        return [directory for directory in self.all if directory.failure is None]

    @property
    def failed(self) -> dict[str, StorageError]:
        return {each.path: each.failure for each in self.all if each.failure is not None}

    def find(self, path: str) -> LogDirectory | None:
        """The directory of that path, offline or not; None if it is not one of ours."""
        (wanted,) = normalized([path])
        return next((each for each in self.all if each.path == wanted), None)

    def absence(self, *, replaced: bool) -> str | None:
        """Which directories are offline or lost, in words; None if all are there. `replaced`:
        lost ones count, too, in whose place there is another that is used."""
        away = {*self.failed, *self.lost.values()}
        if not replaced:
            away.difference_update(each.path for each in self.usable())
        gone = sorted(away)
        if not gone:
            return None
        more = f" and {len(gone) - _SHOWN_MAX} more" if len(gone) > _SHOWN_MAX else ""
        return f"log directory {', '.join(gone[:_SHOWN_MAX])}{more} is not available"

    def give_up(self, partition: TopicPartition) -> None:
        """Nobody waits any more for what was missing of that partition. Raises StorageError."""
        for directory in self.usable():
            directory.give_up(partition)

    # -- start and stop

    def identities(self) -> tuple[int | None, str | None]:
        """Broker id and cluster id in the directories' `meta.properties`, None where none says so.
        Touches nothing. Raises StartupError where they contradict each other, or none can be
        used."""
        broker_ids: dict[int, str] = {}
        cluster_ids: dict[str, str] = {}
        unusable: list[UnusableDirectory] = []
        for directory in self.all:
            try:
                found = directory.meta()
            except UnusableDirectory as error:
                unusable.append(error)
                continue
            if found is not None and found.broker_id is not None:
                broker_ids.setdefault(found.broker_id, directory.path)
            if found is not None and found.cluster_id is not None:
                cluster_ids.setdefault(found.cluster_id, directory.path)
        if unusable and len(unusable) == len(self.all):
            raise unusable[0]
        for what, ids in (("broker", broker_ids), ("cluster", cluster_ids)):
            if len(ids) > 1:
                listed = ", ".join(f"{path} to {what} {id}" for id, path in ids.items())
                raise StartupError(f"log directories belong together no more: {listed}")
        return next(iter(broker_ids), None), next(iter(cluster_ids), None)

    def lock(self, process_id: int) -> None:
        """Take the locks of all that can be used. Raises StartupError, holding none."""
        try:
            for directory in self.usable():
                self.attempt(directory, lambda each: each.lock(process_id))
        except StartupError:
            self.unlock()
            raise

    def check(self, broker_id: int, cluster_id: str) -> None:
        """Whether all are this broker's. Raises StartupError."""
        for directory in self.usable():
            self.attempt(directory, lambda each: each.require_usable())
            if directory.failure is None:
                directory.check(broker_id, cluster_id)

    def attempt(self, directory: LogDirectory, work: Callable[[LogDirectory], None]) -> None:
        """Do something of the start; where the disk refuses, the directory is offline from now on.
        Raises StartupError if it was the last."""
        try:
            work(directory)
        except (UnusableDirectory, StorageError) as error:
            others = [each for each in self.usable() if each is not directory]
            if not others:
                if isinstance(error, UnusableDirectory):
                    raise
                raise StartupError(f"the logs cannot be opened: {error}") from error
            self._go_offline(directory, str(error))

    def _go_offline(self, directory: LogDirectory, reason: str) -> None:
        directory.failure = StorageError(reason)
        directory.unlock()
        _logger.error(
            "log directory offline path=%s: its partitions answer KAFKA_STORAGE_ERROR until it is"
            " back and the broker started again reason=%s",
            directory.path,
            reason,
        )

    def unlock(self) -> None:
        for directory in self.all:
            directory.unlock()

    @property
    def is_fresh(self) -> bool:
        """Whether no directory that can be used holds anybody's data."""
        return all(directory.meta() is None for directory in self.usable())

    def settle(self, rng: Rng, *, expects_data: bool) -> tuple[dict[str, str], meta.Family]:
        """Find out which directories are lost; gives the id of each that is used, by path, and what
        they shall know of each other. Writes nothing. `expects_data`: this broker is known to have
        had partitions, so if all directories are empty, their data is lost.

        Raises StartupError if one directory is a copy of another; StorageError.
        """
        ids = self._ids()
        known = self._newest_family()
        present = set(ids.values())
        accepted = self.accepted()
        lost = {
            key: path
            for key, path in known.members.items()
            if key not in present and not {key, path} & accepted
        }
        gone = sorted(known.members.keys() - present - lost.keys())
        given_up = {key: known.members[key] for key in gone}
        if expects_data and self.is_fresh:
            for directory in self.usable():
                held = given_up if directory.path in accepted else lost
                held[_new_id(rng)] = directory.path
        for key, path in given_up.items():
            _logger.warning("loss of a log directory accepted path=%s id=%s", path, key)
        self.given_up = given_up
        self._take_back(ids, lost)
        self._keep_out_replacements(ids, lost)
        for directory in self.usable():
            ids.setdefault(directory.path, _new_id(rng))
        ids = {each.path: ids[each.path] for each in self.usable()}
        offline = set(self.failed)
        self.lost = {key: path for key, path in lost.items() if path not in offline}
        self._tell_lost()
        members = {**lost, **{key: path for path, key in ids.items()}}
        # A broker that is killed before it is known to have lost them gives them up again.
        remembered = {**given_up, **members}
        revision = known.revision + (remembered != known.members)
        self._family = meta.Family(members, revision + bool(given_up))
        return ids, meta.Family(remembered, revision)

    @property
    def family(self) -> meta.Family:
        """Which directories there are, when what the operator gave up is settled."""
        return self._family

    def _ids(self) -> dict[str, str]:
        """Path -> id of the directories that have one."""
        ids: dict[str, str] = {}
        paths: dict[str, str] = {}
        for directory in self.usable():
            found = directory.meta()
            if found is None or found.directory_id is None:
                continue
            other = paths.setdefault(found.directory_id, directory.path)
            if other != directory.path:
                raise StartupError(
                    f"log directories {other} and {directory.path} have the same directory.id in"
                    " meta.properties: one is a copy of the other; remove it from log.dirs"
                )
            ids[directory.path] = found.directory_id
        return ids

    def _newest_family(self) -> meta.Family:
        families = [directory.family() for directory in self.usable()]
        revision = max((family.revision for family in families), default=0)
        members: dict[str, str] = {}
        for family in families:
            if family.revision == revision:
                members.update(family.members)
        return meta.Family(members, revision)

    def accepted(self) -> set[str]:
        """What the operator gives up: directories, and partitions. Raises StorageError."""
        words = [word for each in self.usable() for word in each.accepted_losses()]
        return {*words, *normalized(words)}

    def _take_back(self, ids: dict[str, str], lost: dict[str, str]) -> None:
        """A directory that has lost its `meta.properties`, but is where it was and holds
        partitions, is the one that the others know: it gets its id again."""
        for key, path in list(lost.items()):
            for directory in self.usable():
                if directory.path == path and path not in ids and directory.partitions():
                    ids[path] = key
                    del lost[key]
                    _logger.warning(
                        "log directory without its directory.id taken back path=%s id=%s", path, key
                    )

    def _keep_out_replacements(self, ids: Mapping[str, str], lost: Mapping[str, str]) -> None:
        """An empty directory in the place of a lost one is most often a mount point without its
        disk: what is written there would hide behind the disk when that comes back."""
        by_path = {path: key for key, path in lost.items()}
        for directory in self.usable():
            if directory.path in by_path and directory.path not in ids and len(self.usable()) > 1:
                other = next(each for each in self.usable() if each is not directory)
                self._go_offline(
                    directory,
                    f"it is empty, but held data of this broker (directory.id"
                    f" {by_path[directory.path]}): mount the disk, or, if the data is gone for"
                    f" good, write the path {directory.path} into {other.path}/{ACCEPTED_LOSS}",
                )

    def _tell_lost(self) -> None:
        usable = self.usable()
        for key, path in sorted(self.lost.items()):
            _logger.error(
                "log directory lost path=%s id=%s: partitions that are nowhere else answer"
                " KAFKA_STORAGE_ERROR until it is in log.dirs again with its data; if that is gone"
                " for good, write the path %s into %s/%s and start again",
                path,
                key,
                path,
                usable[0].path,
                ACCEPTED_LOSS,
            )

    def forget_accepted(self) -> None:
        """What the operator gave up is written down: it was meant once. Raises StorageError."""
        for directory in self.usable():
            directory.forget_accepted_losses()


def _new_id(rng: Rng) -> str:
    """As Kafka's random ids: none begins with a dash, which tools would take for an option."""
    while True:
        text = encode_uuid(uuid.UUID(bytes=rng.randbytes(16), version=4))
        if not text.startswith("-"):
            return text


def normalized(directories: Iterable[str]) -> list[str]:
    """Without the slash at the end, and each once."""
    return list(dict.fromkeys(path.rstrip("/") or "/" for path in directories))
