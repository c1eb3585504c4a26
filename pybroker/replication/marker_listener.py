"""The callback for commit and abort markers in internal topics."""

from __future__ import annotations

from typing import Protocol

from pybroker.model import TopicPartition


class MarkerListener(Protocol):
    """Called when the leader appends a transaction marker at `offset` to an internal topic. The
    high watermark may still be below `offset`. Must neither wait nor raise."""

    def __call__(
        self,
        topic_partition: TopicPartition,
        offset: int,
        producer_id: int,
        producer_epoch: int,
        is_commit: bool,
        /,
    ) -> None: ...
