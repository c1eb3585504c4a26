"""The log directories of one broker: usable, offline or lost. Each directory stores the ids of all
directories, so that the broker detects a lost directory and creates no empty logs for its
partitions."""

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

log = logging.getLogger(__name__)
_SHOWN_MAX: Final = 3


class DirectorySet:
    """The log directories in log.dirs. A starting broker calls `lock`, `check` and `settle`; a
    stopping broker calls `unlock`. An unusable directory goes offline."""

    def __init__(
        self, paths: Iterable[str], disk: Disk, foreign_names: frozenset[str] = frozenset()
    ) -> None:
        self.all: Sequence[LogDirectory] = [
            LogDirectory(path, disk, foreign_names) for path in normalized(paths)
        ]
        self.lost: Mapping[str, str] = {}
        """Id -> path of each directory that stored data of this broker and is now absent."""
        self.given_up: Mapping[str, str] = {}
        """Id -> path of each directory whose loss the operator has accepted. It stays here until
        its replicas have left the ISR and the eligible replicas."""
        self._family = meta.Family()

    def usable(self) -> list[LogDirectory]:
        return [directory for directory in self.all if directory.failure is None]

    @property
    def failed(self) -> dict[str, StorageError]:
        return {each.path: each.failure for each in self.all if each.failure is not None}

    def find(self, path: str) -> LogDirectory | None:
        """Return the directory with this path, offline or not; None if the path is not in
        log.dirs."""
        (wanted,) = normalized([path])
        return next((each for each in self.all if each.path == wanted), None)

    def absence(self, *, replaced: bool) -> str | None:
        """Return an error text that names the offline and lost directories, or None if there are
        none. With `replaced`, the text also names each lost directory whose path now has a new,
        usable directory."""
        away = {*self.failed, *self.lost.values()}
        if not replaced:
            away.difference_update(each.path for each in self.usable())
        gone = sorted(away)
        if not gone:
            return None
        more = f" and {len(gone) - _SHOWN_MAX} more" if len(gone) > _SHOWN_MAX else ""
        return f"log directory {', '.join(gone[:_SHOWN_MAX])}{more} is not available"

    def give_up(self, partition: TopicPartition) -> None:
        """Forget a partition whose directory has disappeared: remove it from `missing` and from the
        checkpoints of all usable log directories. Raises StorageError."""
        for directory in self.usable():
            directory.give_up(partition)

    # -- start and stop

    def identities(self) -> tuple[int | None, str | None]:
        """Return the broker id and the cluster id in the `meta.properties` files, each None if no
        file has it. Raises StartupError if the files contradict each other, or if no directory is
        usable."""
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
                raise StartupError(
                    f"log directories belong to different {what}s: {listed}; correct log.dirs"
                )
        return next(iter(broker_ids), None), next(iter(cluster_ids), None)

    def lock(self, process_id: int) -> None:
        """Lock all usable directories for this process. Raises StartupError if another process
        holds a lock, or if no directory is usable. After an error no directory is locked."""
        try:
            for directory in self.usable():
                self.attempt(directory, lambda each: each.lock(process_id))
        except StartupError:
            self.unlock()
            raise

    def check(self, broker_id: int, cluster_id: str) -> None:
        """Take unusable directories offline. Raises StartupError if a directory belongs to another
        broker or cluster, or if no directory is usable."""
        for directory in self.usable():
            self.attempt(directory, lambda each: each.require_usable())
            if directory.failure is None:
                directory.check(broker_id, cluster_id)

    def attempt(self, directory: LogDirectory, work: Callable[[LogDirectory], None]) -> None:
        """Call `work` for this directory. If `work` raises StorageError or UnusableDirectory, the
        directory goes offline. Raises StartupError instead if this is the last usable directory."""
        try:
            work(directory)
        except (UnusableDirectory, StorageError) as error:
            others = [each for each in self.usable() if each is not directory]
            if not others:
                if isinstance(error, UnusableDirectory):
                    raise
                raise StartupError(f"no log directory can be used: {error}") from error
            self._go_offline(directory, str(error))

    def _go_offline(self, directory: LogDirectory, reason: str) -> None:
        directory.failure = StorageError(reason)
        directory.unlock()
        log.error(
            "log directory offline path=%s: its partitions answer KAFKA_STORAGE_ERROR until the"
            " directory is usable and the broker is restarted reason=%s",
            directory.path,
            reason,
        )

    def unlock(self) -> None:
        for directory in self.all:
            directory.unlock()

    @property
    def is_fresh(self) -> bool:
        """Whether all usable directories are new: none has a file `meta.properties`."""
        return all(directory.meta() is None for directory in self.usable())

    def settle(self, rng: Rng, *, expects_data: bool) -> tuple[dict[str, str], meta.Family]:
        """Find the lost directories, and give each new directory an id. Return path -> id of each
        usable directory, and the list of all directories. The caller must store the list in each
        usable directory.

        `expects_data`: whether this broker had partitions before. If it had, and all usable
        directories are new, each new directory counts as the replacement of a lost directory.
        Raises StartupError if one directory is a copy of another. Raises StorageError.
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
            log.warning("loss of a log directory accepted by the operator path=%s id=%s", path, key)
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
        # The stored list still contains the directories whose loss was accepted. If the broker is
        # killed before the replicas of these directories have stepped aside, the next start finds
        # the losses again.
        remembered = {**given_up, **members}
        revision = known.revision + (remembered != known.members)
        self._family = meta.Family(members, revision + bool(given_up))
        return ids, meta.Family(remembered, revision)

    @property
    def family(self) -> meta.Family:
        """The log directories of this broker, including lost ones, but without those whose loss the
        operator accepted."""
        return self._family

    def _ids(self) -> dict[str, str]:
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
                    " meta.properties: one is a copy of the other; remove the copy from log.dirs"
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
        """Return the losses that the operator accepts: the paths or ids of lost log directories,
        and the names of damaged partitions. Raises StorageError."""
        words = [word for each in self.usable() for word in each.accepted_losses()]
        return {*words, *normalized(words)}

    def _take_back(self, ids: dict[str, str], lost: dict[str, str]) -> None:
        """Move ids from `lost` (id -> path) to `ids` (path -> id). An id is moved if the directory
        at its path is usable, has partitions, and has no id in `ids`. Such a directory only lacks
        its `meta.properties`."""
        for key, path in list(lost.items()):
            for directory in self.usable():
                if directory.path == path and path not in ids and directory.partitions():
                    ids[path] = key
                    del lost[key]
                    log.warning(
                        "log directory without meta.properties taken back: it has partitions and a"
                        " known path, so it gets its directory.id again path=%s id=%s",
                        path,
                        key,
                    )

    def _keep_out_replacements(self, ids: Mapping[str, str], lost: Mapping[str, str]) -> None:
        """Take a log directory offline if it is empty and has the path of a lost directory: the
        lost disk is probably not mounted. The last usable directory stays online."""
        by_path = {path: key for key, path in lost.items()}
        for directory in self.usable():
            if directory.path in by_path and directory.path not in ids and len(self.usable()) > 1:
                other = next(each for each in self.usable() if each is not directory)
                self._go_offline(
                    directory,
                    f"the directory is empty, but had data of this broker before (directory.id"
                    f" {by_path[directory.path]}): mount the disk; if the data cannot be restored,"
                    f" write the path {directory.path} into {other.path}/{ACCEPTED_LOSS}",
                )

    def _tell_lost(self) -> None:
        usable = self.usable()
        for key, path in sorted(self.lost.items()):
            log.error(
                "log directory lost path=%s id=%s: its partitions answer"
                " KAFKA_STORAGE_ERROR until the directory with its data is in log.dirs again. If"
                " the data cannot be restored, write the path %s into %s/%s and restart this"
                " broker",
                path,
                key,
                path,
                usable[0].path,
                ACCEPTED_LOSS,
            )

    def forget_accepted(self) -> None:
        """Remove the file `pybroker.accept-loss` from each usable log directory. Raises
        StorageError."""
        for directory in self.usable():
            directory.forget_accepted_losses()


def _new_id(rng: Rng) -> str:
    """Return a random id in Kafka's format, without a leading dash."""
    while True:
        text = encode_uuid(uuid.UUID(bytes=rng.randbytes(16), version=4))
        if not text.startswith("-"):
            return text


def normalized(directories: Iterable[str]) -> list[str]:
    """Return the paths of `directories` without trailing slashes and without duplicates."""
    return list(dict.fromkeys(path.rstrip("/") or "/" for path in directories))
