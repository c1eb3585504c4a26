"""Tests of a change of advertised.listeners while the broker runs: the registration and the
metadata for clients change, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import ErrorCode
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.metadata import MetadataRequest
from unit_tests.handlers.bench import BROKER_ID, Bench, the_only
from unit_tests.handlers.config_words import BROKER, DELETE, ME, SET, change, option, shown, stored
from unit_tests.idle_loop import idle
from unit_tests.patience import until

NAME = "advertised.listeners"
FIRST = ("broker.example", 9092)
NEW = ("other.example", 19092)
TO_NEW = (SET, NAME, "PLAINTEXT://other.example:19092")


def registered(bench: Bench) -> tuple[str, int] | None:
    """The host and port in the registration."""
    found = bench.tree.node(paths.broker(BROKER_ID))
    if found is None:
        return None
    ((endpoint,), _) = schemas.decode_broker("", found[0])
    return endpoint.host, endpoint.port


async def advertised(bench: Bench) -> tuple[str, int]:
    """The host and port in the answer to Metadata."""
    answer = await bench.ask(ApiKey.METADATA, 9, MetadataRequest(topics=[]))
    broker = the_only(answer.brokers)
    return broker.host, broker.port


def known(bench: Bench) -> list[tuple[str, int]]:
    """Return the broker's own addresses in its metadata, as UpdateMetadata set them."""
    me = bench.app.metadata.brokers.get(BROKER_ID)
    return [] if me is None else [(each.host, each.port) for each in me.endpoints]


async def become(bench: Bench, wanted: tuple[str, int]) -> None:
    await until(lambda: registered(bench) == wanted)
    await until(lambda: known(bench) == [wanted])
    assert await advertised(bench) == wanted


async def test_the_registration_and_the_metadata_follow_a_change(bench: Bench) -> None:
    epoch = bench.app.replicas.broker_epoch
    await bench.create("t")
    leader = bench.app.replicas.partitions
    before = [each.leader_epoch for each in leader.values()]
    assert registered(bench) == FIRST
    assert await change(bench, (BROKER, ME), TO_NEW) == (ErrorCode.NONE, None)
    await become(bench, NEW)
    assert await change(bench, (BROKER, ME), (DELETE, NAME, None)) == (ErrorCode.NONE, None)
    await become(bench, FIRST)
    assert bench.app.replicas.broker_epoch == epoch, "it is the same registration"
    assert [each.leader_epoch for each in leader.values()] == before


async def test_the_option_is_described_as_one_that_changes(bench: Bench) -> None:
    await change(bench, (BROKER, ME), TO_NEW)
    found = await option(bench, (BROKER, ME), NAME)
    assert not found.read_only
    assert await shown(bench, (BROKER, ME), NAME) == (TO_NEW[2], 2)


async def test_a_restart_keeps_the_change(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        await change(bench, (BROKER, ME), TO_NEW)
        await become(bench, NEW)
    async with bench.again() as restarted:
        assert registered(restarted) == NEW
        assert await advertised(restarted) == NEW


async def test_a_session_that_expires_keeps_the_change(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties={"zookeeper.session.timeout.ms": "1000"}) as bench:
        await change(bench, (BROKER, ME), TO_NEW)
        await become(bench, NEW)
        epoch = bench.app.replicas.broker_epoch
        bench.coord.expire()
        await until(lambda: bench.app.replicas.broker_epoch > epoch)
        await become(bench, NEW)


async def test_a_change_without_a_session_is_in_the_next_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool changes the configuration, and the session ends before the broker updates its
    registration."""
    monkeypatch.setattr("pybroker.broker.membership._RETRY_S", 0)
    async with Bench(tmp_path, properties={"zookeeper.session.timeout.ms": "1000"}) as bench:
        bench.coord.expire()
        before = bench.app.live.current
        now = bench.app.live.layers.with_values({NAME: TO_NEW[2]}, per_broker=True).current
        bench.app._reconfigure(before, now)
        await until(lambda: registered(bench) == NEW)


async def test_a_lost_write_of_the_registration_is_repeated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.broker.membership._RETRY_S", 0)
    before = bench.app.live.current
    now = bench.app.live.layers.with_values({NAME: TO_NEW[2]}, per_broker=True).current
    for _ in range(3):
        bench.coord.lose_reply(applied=False)
    bench.app._reconfigure(before, now)
    await until(lambda: registered(bench) == NEW)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("PLAINTEXT://0.0.0.0:9092", "clients cannot connect to 0.0.0.0"),
        ("OUTSIDE://a:9092", "listener OUTSIDE has no protocol"),
        ("SASL_SSL://a:9092", "not available"),
        ("PLAINTEXT://a:66000", "expected a port from 0 to 65535"),
        ("a:9092", "expected NAME://HOST:PORT"),
        ("", "expected at least one NAME://HOST:PORT"),
    ],
)
async def test_listeners_that_a_start_would_reject_are_rejected(
    bench: Bench, text: str, words: str
) -> None:
    code, message = await change(bench, (BROKER, ME), (SET, NAME, text))
    assert code is ErrorCode.INVALID_REQUEST
    assert message is not None
    assert words in message
    await idle()
    assert registered(bench) == FIRST
    assert not stored(bench, f"brokers/{ME}")


async def test_advertised_listeners_cannot_be_set_for_all_brokers(bench: Bench) -> None:
    code, message = await change(bench, (BROKER, ""), TO_NEW)
    assert code is ErrorCode.INVALID_REQUEST
    assert message == (
        "Cannot update these configs at default cluster level, broker id must be specified:"
        f" Set({NAME})"
    )
