"""Tests of diverging logs, and a leader that has deleted the point of divergence."""

from __future__ import annotations

from pathlib import Path

from unit_tests.handlers.bench import batch
from unit_tests.replication.copying import Group


async def test_a_log_that_diverges_below_the_leaders_log_start_is_discarded_with_its_producers(
    tmp_path: Path,
) -> None:
    """The leader has deleted the point of divergence. With the old producer state, a producer's
    retry would be acknowledged, although the leader's log never had the batch."""
    pair = Group(tmp_path)
    await pair.lead(1, 0)
    pair[1].append(b"first")
    await pair.copied(1)
    pair.cut.add((2, 1))
    await pair.until(lambda: pair.refused(2))
    sent = batch(b"only here", producer=(7, 0, 0))
    pair[1].store(bytearray(sent))
    for _ in range(3):
        pair[1].append(b"only here, too")
    await pair[1].close(clean=False)
    await pair.lead(2, 1, isr=(2,))
    for _ in range(3):
        pair[2].append(b"of the leader")
    pair[2].partition().log.advance_log_start(3)
    pair.cut.clear()
    await pair.reopen(1)
    await pair.lead(2, 1, isr=(2,), to=[1])
    await pair.copied(2)
    assert pair[1].bytes_of() == pair[2].bytes_of() != b""
    await pair.lead(1, 2)
    assert pair[1].store(bytearray(sent)) == 5
    assert b"only here" in pair[1].bytes_of()
    await pair.close()
