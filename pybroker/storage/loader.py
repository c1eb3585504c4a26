"""Creates the log of a new partition, or opens an existing log from its files. Rebuilds missing or
damaged indexes, producer states and leader epochs."""

from __future__ import annotations

import logging
import sys
import uuid
from dataclasses import dataclass, replace
from typing import Final

from pybroker.errors import CorruptionError
from pybroker.model import NO_EPOCH, TopicPartition
from pybroker.ports import Disk
from pybroker.records.batch import BatchHeader
from pybroker.storage import (
    epoch_check,
    lookup,
    meta,
    recovery,
    segment_files,
    undeleted_segments,
)
from pybroker.storage.checkpoints import decode_epochs
from pybroker.storage.epochs import EpochHistory
from pybroker.storage.filename import (
    CORRUPT_SUFFIX,
    DAMAGED,
    DELETED_SUFFIX,
    INCOMPLETE,
    LEADER_EPOCHS,
    MOVED_HERE,
    MOVING_AWAY,
    OUTDATED,
    PARTITION_METADATA,
    TEMPORARY_SUFFIX,
    SegmentFile,
    parse_segment_file,
    segment_file,
)
from pybroker.storage.log import Log
from pybroker.storage.log_config import LogConfig
from pybroker.storage.log_parts import Damage, LogOwner, LogParts
from pybroker.storage.producer_state import ProducerState
from pybroker.storage.segment import Segment
from pybroker.storage.segments import Segments
from pybroker.storage.snapshot_files import SnapshotFiles

log = logging.getLogger(__name__)
_LOG: Final = SegmentFile.LOG
_KNOWN_FILES: Final = frozenset(
    {DAMAGED, INCOMPLETE, LEADER_EPOCHS, MOVED_HERE, MOVING_AWAY, OUTDATED, PARTITION_METADATA}
)
_LEFTOVERS: Final = (DELETED_SUFFIX, TEMPORARY_SUFFIX)


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about a log that is not opened yet. `recovery_point` and `log_start_offset` are
    checkpointed; None if missing.

    - `floor_offset`: a log that ends below this offset is damaged.
    - `may_be_in_memory_only`: after a disk failure, records above the recovery point may be missing
      on the disk, although they can be read.
    - `same_boot`: no written bytes are lost, because the machine has not rebooted since a broker
      used this log, and the disk did not fail.
    - `lost_power`: the machine has rebooted or lost power since a broker used this log. Without a
      known boot id, `same_boot` and `lost_power` are both False.
    - `accepts_loss`: the operator accepts the loss of all records from the first corrupt range on.
    - `checks_all`: recovery also checks the batches below the recovery point.
    """

    clean: bool = False
    recovery_point: int | None = None
    log_start_offset: int | None = None
    floor_offset: int = 0
    may_be_in_memory_only: bool = False
    same_boot: bool = False
    lost_power: bool = False
    accepts_loss: bool = False
    checks_all: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """The opened log, whether recovery checked its batches, and the length in bytes of the torn
    tail (incomplete last write) that recovery cut off."""

    log: Log
    recovered: bool
    cut_bytes: int


def create_log(
    topic_partition: TopicPartition,
    directory: str,
    config: LogConfig,
    disk: Disk,
    owner: LogOwner,
    *,
    first_offset: int = 0,
    log_start_offset: int = 0,
) -> Log:
    """Create the directory of a new, empty log, and return the log. Its first record gets
    `first_offset`. The log start offset is the larger one of `first_offset` and
    `log_start_offset`."""
    # The first sync of a segment makes the directory's name durable. A power loss before that sync
    # may remove the directory; the broker handles that at its start.
    disk.make_dirs(directory)
    parts = LogParts(
        directory,
        disk,
        config,
        Segments(directory, disk, [Segment.created(directory, first_offset, disk)], is_new=True),
        EpochHistory(),
        ProducerState(),
        SnapshotFiles(directory, disk),
        log_start_offset=max(first_offset, log_start_offset),
        recovery_point=first_offset,
    )
    return Log(topic_partition, parts, owner)


def open_log(
    topic_partition: TopicPartition,
    directory: str,
    config: LogConfig,
    disk: Disk,
    owner: LogOwner,
    known: Known,
    *,
    now_ms: int,
) -> Opened:
    """Open the log in `directory`, with recovery if it was not closed cleanly. Raises
    StorageError."""
    try:
        return _open(topic_partition, directory, config, disk, owner, known, now_ms)
    except CorruptionError as error:
        # A batch below the recovery point is corrupt; a full check finds the first corrupt one.
        log.warning("corrupt batch, checking the whole log path=%s reason=%s", directory, error)
        known = replace(known, checks_all=True)
        return _open(topic_partition, directory, config, disk, owner, known, now_ms)


def _open(
    topic_partition: TopicPartition,
    directory: str,
    config: LogConfig,
    disk: Disk,
    owner: LogOwner,
    known: Known,
    now_ms: int,
) -> Opened:
    """Open the log. Recovery skips the batches that `known` declares intact. Raises StorageError.
    Raises CorruptionError if a step after recovery reads a skipped batch and finds it corrupt."""
    loader = _Loader(directory, config, disk, known)
    loader.list_files()
    if known.may_be_in_memory_only:
        loader.write_anew()
    found = loader.find_end()
    segments, log_start, epochs, epochs_changed = loader.read(found)
    if known.accepts_loss and loader.corrupt_header is not None:
        loader.list_files()
        found = loader.find_end()
        segments, log_start, epochs, epochs_changed = loader.read(found)
    end = segments.active.next_offset
    # Epochs beyond the end are removed from the file, too: otherwise they would be valid again once
    # the log has grown.
    epochs_changed |= epochs.truncate_end(end)
    epochs.truncate_start(log_start)
    damage = loader.known_damage() or loader.damage(found)
    loader.snapshots.keep((segment.base_offset for segment in segments.all), end)
    if known.recovery_point is None:
        recovery_point = segments.first.base_offset
    else:
        recovery_point = min(known.recovery_point, end)
    log = Log(
        topic_partition,
        LogParts(
            directory,
            disk,
            config,
            segments,
            epochs,
            lookup.rebuild_producers(
                segments, loader.snapshots, recovery_point if loader.recovered else end, now_ms
            ),
            loader.snapshots,
            log_start_offset=log_start,
            recovery_point=recovery_point,
            damage=damage,
            unreachable=found.unreachable,
            settled_end=-1 if loader.recovered else end,
            epochs_changed=epochs_changed,
        ),
        owner,
    )
    log.topic_id = loader.topic_id()
    if log.topic_id is not None and not known.clean:
        # The file `partition.metadata` exists, but it may not be durable.
        log.epoch_file.comes_after(f"{directory}/{PARTITION_METADATA}")
    return Opened(log, loader.recovered, loader.cut_bytes)


class _Loader:
    """The steps and the state of opening one log."""

    def __init__(self, directory: str, config: LogConfig, disk: Disk, known: Known) -> None:
        self._directory = directory
        self._config = config
        self._disk = disk
        self._known = known
        self._names: frozenset[str] = frozenset()
        self._bases: list[int] = []
        self._filed: EpochHistory | None = None
        self._fault: str | None = None
        self._agreed = (NO_EPOCH, 0)
        self.snapshots = SnapshotFiles(directory, disk)
        self.recovered = False
        self.cut_bytes = 0
        self.corrupt_header: Damage | None = None
        """The first batch whose leader epoch is corrupt, or may be; None if there is none."""

    def list_files(self) -> None:
        names = self._disk.list_dir(self._directory)
        if segment_files.complete_at_start(self._directory, self._disk, names):
            names = self._disk.list_dir(self._directory)
        point = self._known.recovery_point or 0
        if undeleted_segments.restore(self._directory, self._disk, names, point):
            names = self._disk.list_dir(self._directory)
        if any(name.endswith(DELETED_SUFFIX) for name in names):
            # The renames are synced before the removal, as in `Segments.remove_doomed`.
            self._disk.sync_dir(self._directory)
        parsed = {name: parse_segment_file(name) for name in names}
        bases = {found.offset for found in parsed.values() if found and found.kind is _LOG}
        snapshots = []
        for name, found in parsed.items():
            path = f"{self._directory}/{name}"
            if found is None:
                if name.endswith(_LEFTOVERS):
                    self._disk.unlink(path)
                elif name not in _KNOWN_FILES and not name.endswith(CORRUPT_SUFFIX):
                    log.warning("unexpected file in a log is not used path=%s", path)
            elif found.kind is SegmentFile.SNAPSHOT:
                snapshots.append(found.offset)
            elif found.kind is not _LOG and found.offset not in bases:
                log.info("removing an index without a segment path=%s", path)
                self._disk.unlink(path)
        self._names = frozenset(names)
        self._bases = sorted(bases)
        self.snapshots = SnapshotFiles(self._directory, self._disk, snapshots)

    def write_anew(self) -> None:
        """Replace each segment file that has records above the recovery point with a synced copy.
        Needed after a failed sync: bytes of the original may be in memory only."""
        # After a failed sync the kernel may treat bytes as written that never reached the disk.
        # They can be read while they are in memory, but another sync does not write them.
        durable = self._known.recovery_point or 0
        # After a power loss the directory of a new log may exist without its files.
        for base, end in zip(self._bases, [*self._bases[1:], None], strict=False):
            if end is not None and end <= durable:
                continue
            path = f"{self._directory}/{segment_file(base, _LOG)}"
            copy = f"{path}{TEMPORARY_SUFFIX}"
            self._disk.unlink(copy)
            file = self._disk.open(path)
            recovery.copy_from(file, 0, self._disk, copy)
            file.close()
            self._disk.rename(copy, path)
            log.info("segment rewritten after a failure of the disk path=%s", path)
        self._disk.sync_dir(self._directory)

    def _segments(self) -> list[Segment]:
        segments: list[Segment] = []
        for base, following in zip(self._bases, [*self._bases[1:], None], strict=False):
            size = self._disk.size(f"{self._directory}/{segment_file(base, _LOG)}")
            next_offset = base if following is None else following
            segments.append(
                Segment(self._directory, base, self._disk, size=size, next_offset=next_offset)
            )
        if not segments:
            start = self._known.log_start_offset or 0
            segments.append(Segment.created(self._directory, start, self._disk))
        return segments

    def find_end(self) -> recovery.Recovered:
        """Find the log end offset: in the last segment if the log was closed cleanly, else by
        recovery."""
        self._read_epochs()
        known = self._known
        segments = self._segments()
        if known.clean and not (known.accepts_loss or known.checks_all):
            for segment in segments:
                segment.offsets.table.trust()
                segment.times.table.trust()
            try:
                segments[-1].load_end(self._config.index_interval_bytes)
                end = segments[-1].next_offset
                if end == known.recovery_point or known.recovery_point is None:
                    return recovery.Recovered(tuple(segments))
                fault = (
                    f"the log ends at offset {end}, expected {known.recovery_point}, the "
                    "recovery point"
                )
            except CorruptionError as error:
                fault = str(error)
            log.warning(
                "log is checked although it was closed cleanly path=%s reason=%r",
                self._directory,
                fault,
            )
            segments = self._segments()
        self.recovered = True
        recovery_point = known.recovery_point
        if recovery_point is None or known.accepts_loss:
            recovery_point = segments[0].base_offset
        floor_offset = 0 if known.accepts_loss else max(recovery_point, known.floor_offset)
        found = recovery.recover(
            segments,
            self._disk,
            recovery_point=segments[0].base_offset if known.checks_all else recovery_point,
            floor_offset=floor_offset,
            gapless_from=self._gapless_from(recovery_point),
            trusts_indexes=known.same_boot,
            accepts_loss=known.accepts_loss,
            index_interval_bytes=self._config.index_interval_bytes,
            visit=self._look_at,
        )
        self.cut_bytes += found.cut_bytes
        return found

    def _gapless_from(self, recovery_point: int) -> int:
        """Return the offset above which segments must follow each other without a gap."""
        if not self._config.compacts:
            return 0
        # In a compacted topic gaps are normal. But compaction syncs its segments, so after a power
        # loss a gap above the recovery point means lost records.
        return recovery_point if self._known.lost_power else sys.maxsize

    def _look_at(self, position: int, header: BatchHeader) -> str | None:
        """Called by recovery for each valid batch. Return the reason to reject the batch because of
        its leader epoch, or None."""
        if self.corrupt_header is not None and header.base_offset == self.corrupt_header.offset:
            return self.corrupt_header.reason
        epoch, end = self._agreed
        if header.leader_epoch == epoch and header.last_offset < end:
            return None
        filed = self._filed
        if filed is not None and self._fault is None:
            start = self._known.log_start_offset or 0
            is_known = filed.entries or header.leader_epoch == NO_EPOCH
            if not is_known or not epoch_check.agrees(filed, header, start):
                self._fault = (
                    f"the batch at offset {header.base_offset} has leader epoch "
                    f"{header.leader_epoch}, expected {filed.epoch_of(header.last_offset)} "
                    "according to the epoch file"
                )
            elif header.leader_epoch == filed.epoch_of(header.base_offset):
                # The batches up to the next epoch need no lookup.
                end = filed.end_offset(header.leader_epoch, sys.maxsize)[1]
                self._agreed = header.leader_epoch, end
        return None

    def read(self, found: recovery.Recovered) -> tuple[Segments, int, EpochHistory, bool]:
        """Return the segments that recovery has found, the log start offset, the leader epochs, and
        whether the leader epoch file must be rewritten."""
        # A killed broker may have created a segment without a sync of its name.
        are_durable = not self.recovered
        segments = Segments(
            self._directory, self._disk, found.segments, are_names_durable=are_durable
        )
        start = max(self._known_start(), segments.first.base_offset)
        log_start = min(start, segments.active.next_offset)
        return segments, log_start, *self.epochs(segments, log_start)

    def _known_start(self) -> int:
        """Return the lower of two offsets: the log start offset in the checkpoint, and the start
        offset of the first epoch in the leader epoch file."""
        # The epoch file is written before the checkpoint. So if the checkpoint has the higher log
        # start, it is corrupt: retention would delete valid records.
        start = self._known.log_start_offset or 0
        if self._filed is None or not self._filed.entries:
            return start
        first = self._filed.entries[0].start_offset
        if first < start:
            log.warning(
                "log start taken from the epoch file, lower than the checkpoint's path=%s start=%d",
                self._directory,
                first,
            )
        return min(start, first)

    def damage(self, found: recovery.Recovered) -> Damage | None:
        """Return the first damage of the log; None if there is none."""
        corrupt = self.corrupt_header
        if corrupt is None or self._known.accepts_loss:
            return found.damage
        if found.damage is None:
            return corrupt
        if corrupt.is_doubt or corrupt.offset >= found.damage.offset:
            return found.damage
        return replace(corrupt, is_whole=False)

    def _read_epochs(self) -> None:
        path = f"{self._directory}/{LEADER_EPOCHS}"
        self._filed, self._fault, self._agreed = None, None, (NO_EPOCH, 0)
        try:
            if LEADER_EPOCHS not in self._names:
                raise CorruptionError(f"{path}: the file is missing")
            self._filed = EpochHistory(decode_epochs(self._disk.read(path), path))
        except (CorruptionError, FileNotFoundError) as error:
            self._fault = str(error)

    def epochs(self, segments: Segments, log_start: int) -> tuple[EpochHistory, bool]:
        """Return the leader epochs of the log, and whether the epoch file must be rewritten."""
        history, fault = self._filed, self._fault
        if history is not None and fault is None:
            fault = epoch_check.contradiction(history, segments, log_start)
        if history is not None and fault is None:
            return history, self._add_earlier(history, segments, log_start)
        path = f"{self._directory}/{LEADER_EPOCHS}"
        if not any(segment.size for segment in segments.all):
            self._disk.unlink(path)  # a damaged file must not be used later
            return EpochHistory(), False
        filed = history if history is not None and history.entries else None
        judged, self.corrupt_header = epoch_check.judge(filed, segments, log_start)
        if judged is not filed:
            log.warning("leader epochs taken from the batches path=%s reason=%r", path, fault)
        if self.corrupt_header is not None:
            log.error(
                "log damaged path=%s position=%d offset=%d reason=%r",
                self.corrupt_header.path,
                self.corrupt_header.position,
                self.corrupt_header.offset,
                self.corrupt_header.reason,
            )
        if judged is filed:
            return judged, self._add_earlier(judged, segments, log_start)
        return judged, True

    @staticmethod
    def _add_earlier(history: EpochHistory, segments: Segments, log_start: int) -> bool:
        """Add the leader epochs of earlier batches to `history`: the batches below the start offset
        of its first entry. Return whether `history` changed."""
        known = history.entries
        if not known or known[0].start_offset <= log_start:
            return False
        earlier = EpochHistory()
        for segment in segments.from_offset(log_start):
            for _, header in segment.headers(segment.locate(log_start) or 0, segment.size):
                if header.leader_epoch < 0 or header.base_offset >= known[0].start_offset:
                    break  # a log without leader epochs; or all are found
                earlier.assign(header.leader_epoch, max(header.base_offset, log_start))
            else:
                continue
            break
        for epoch, start_offset in known:
            earlier.assign(epoch, start_offset)
        history.replace(earlier)
        return history.entries != known

    def known_damage(self) -> Damage | None:
        """Return the damage that the file `pybroker.damaged` describes; None without this file."""
        path = f"{self._directory}/{DAMAGED}"
        if self._known.accepts_loss:
            self._disk.unlink(path)
            return None
        return Damage.decode(self._disk.read(path), path) if DAMAGED in self._names else None

    def topic_id(self) -> uuid.UUID | None:
        if PARTITION_METADATA not in self._names:
            return None
        path = f"{self._directory}/{PARTITION_METADATA}"
        try:
            return meta.decode_partition_metadata(self._disk.read(path), path)
        except CorruptionError as error:
            log.warning(
                "topic id of a log cannot be read and is unknown path=%s error=%s", path, error
            )
            return None
