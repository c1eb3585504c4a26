"""The listener for commit and abort markers of internal topics."""

from __future__ import annotations

from typing import Protocol

from pybroker.model import TopicPartition


class MarkerListener(Protocol):
    """Called by the handler of WriteTxnMarkers for each commit or abort marker of an internal
    topic's partition, in the step of the event loop that appends the marker at `offset` to the
    leader's log. The marker may still be at or above the high watermark. The call never waits and
    never raises."""

    def __call__(
        self,
        topic_partition: TopicPartition,
        offset: int,
        producer_id: int,
        producer_epoch: int,
        is_commit: bool,
        /,
    ) -> None: ...
