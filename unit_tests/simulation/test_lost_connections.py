"""Connections over the simulated network are lost in every way in which real ones are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError
from pybroker.server.connection import Answer
from unit_tests.simulation.network_lab import (
    PORT,
    SEEDS,
    Lab,
    close,
    connect_error,
    exchange,
    framed,
    outcome,
)


@pytest.fixture(params=SEEDS[:3])
def lab(request: pytest.FixtureRequest) -> Any:
    made = Lab(request.param)
    yield made
    made.end()


# how connections are lost


@pytest.mark.parametrize("direction", [("a", "b"), ("b", "a")])
def test_a_one_way_cut_holds_requests_or_answers_until_it_is_healed(
    lab: Lab, direction: tuple[str, str]
) -> None:
    lab.serve()
    reader, writer = lab.connected()
    lab.links.cut(direction[0], [direction[1]])
    asking = lab.ask(exchange(reader, writer, b"held"))
    lab.run(10)
    assert not asking.done()
    assert lab.served == ([] if direction == ("a", "b") else [b"held"])
    lab.links.heal(direction[0], [direction[1]])
    lab.run(1)
    assert asking.result() == b"held"


def test_a_reset_is_seen_on_both_sides_and_loses_what_is_under_way(lab: Lab) -> None:
    lab.serve()
    pairs = [lab.connected() for _ in range(3)]
    lab.run(1)
    for _, writer in pairs:
        writer.write(framed(b"lost"))
    assert lab.network.reset("a", "b", one=True) == 1
    assert lab.network.reset("b", "a") == 2
    assert [lab.result(outcome(reader)) for reader, _ in pairs] == ["reset"] * 3
    lab.run(1)
    assert lab.server.connection_count == 0
    assert lab.served == []
    assert lab.network.reset("a", "b") == 0


def test_one_of_several_connections_is_reset(lab: Lab) -> None:
    lab.serve()
    readers = [lab.connected()[0] for _ in range(3)]
    assert lab.network.reset("b", "a", one=True) == 1
    lab.run(1)
    assert lab.server.connection_count == 2
    assert lab.network.reset("b", "a") == 2
    assert [lab.result(outcome(reader)) for reader in readers] == ["reset"] * 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_connection_is_cut_right_after_a_request_went_through(seed: str) -> None:
    lab = Lab(seed)
    lab.serve()
    reader, writer = lab.connected()
    lab.network.reset_after("a", "b", len(framed(b"second")) + len(framed(b"first")))
    assert lab.result(exchange(reader, writer, b"first")) == b"first"
    writer.write(framed(b"second") + framed(b"third"))
    assert lab.result(outcome(reader)) == "reset"
    lab.run(5)
    assert lab.served == [b"first", b"second"]
    assert lab.server.connection_count == 0
    lab.end()


def test_who_answers_on_a_cut_connection_learns_of_it_soon_or_when_it_sends() -> None:
    seen = []
    for seed in SEEDS:
        lab, heard = Lab(seed), list[str]()

        async def handle(frame: memoryview, heard: list[str] = heard) -> Answer:
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                heard.append("connection lost")
                raise
            heard.append("answered")
            return [framed(bytes(frame))]

        lab.serve(lambda frame, _, handle=handle: handle(frame))  # type: ignore[misc]
        reader, writer = lab.connected()
        lab.network.reset_after("a", "b", len(framed(b"request")))
        writer.write(framed(b"request"))
        assert lab.result(outcome(reader)) == "reset"
        lab.run(10)
        assert lab.server.connection_count == 0
        lab.end()
        seen += heard
    assert len(seen) == len(SEEDS)
    assert {*seen} == {"answered", "connection lost"}


def test_a_request_is_cut_in_its_middle(lab: Lab) -> None:
    lab.serve()
    reader, writer = lab.connected()
    lab.network.reset_after("a", "b", 6)
    writer.write(framed(b"incomplete"))
    assert lab.result(outcome(reader)) == "reset"
    lab.run(1)
    assert lab.served == []
    assert lab.result(exchange(*lab.connected(), b"again")) == b"again"


def outcomes_of(count: int, stop: Callable[[Lab], object]) -> set[str]:
    seen = set()
    for seed in range(count):
        lab = Lab(str(seed))
        lab.serve()
        reader, _ = lab.connected()
        stop(lab)
        seen.add(lab.result(outcome(reader)))
        lab.end()
    return seen


def test_a_killed_process_ends_or_resets_its_connections() -> None:
    assert outcomes_of(12, lambda lab: lab.b.kill()) == {"end", "reset"}


def test_an_aborted_connection_ends_or_is_reset() -> None:
    seen = set()
    for seed in range(12):
        lab = Lab(str(seed))
        lab.serve()
        _, writer = lab.connected()
        (there,) = lab.network.host(lab.b).connected
        writer.transport.abort()
        lab.run(5)
        seen.add(there.error is None)
        assert lab.server.connection_count == 0
        lab.end()
    assert seen == {True, False}


def test_a_reset_that_meets_a_cut_is_lost_until_somebody_sends() -> None:
    """Half-open: the process that was killed is back, its peer does not know."""
    seen = set()
    for seed in range(12):
        lab = Lab(str(seed))
        lab.serve()
        reader, writer = lab.connected()
        lab.links.cut("b", ["a"])
        lab.b.kill()
        lab.run(1)
        lab.links.heal("b", ["a"])
        lab.serve()
        waiting = lab.ask(outcome(reader))
        lab.run(20)
        seen.add(waiting.done())
        if not waiting.done():
            writer.write(framed(b"anybody?"))
            lab.run(1)
            assert waiting.result() == "reset"
        lab.end()
    assert seen == {True, False}, "the end of data is sent again, a reset is not"


def test_without_power_nothing_is_said_until_the_machine_is_up_and_is_written_to(
    lab: Lab,
) -> None:
    lab.serve()
    (reader, writer), (other_reader, _) = lab.connected(), lab.connected()
    asking = lab.ask(exchange(reader, writer, b"first"))
    lab.run(1)
    assert asking.done()
    lab.b.lose_power()
    waiting, silent = lab.ask(outcome(reader)), lab.ask(outcome(other_reader))
    writer.write(framed(b"nobody hears"))
    lab.run(20)
    assert not waiting.done()
    lab.serve()
    lab.run(5)
    assert waiting.result() == "reset"
    assert not silent.done(), "nothing was sent there"
    assert lab.served == [b"first"]


def test_a_paused_process_is_connected_to_and_answers_when_it_goes_on(lab: Lab) -> None:
    lab.serve()
    assert lab.b.loop is not None
    lab.b.loop.pause()
    reader, writer = lab.connected()
    asking = lab.ask(exchange(reader, writer, b"late"))
    lab.run(10)
    assert not asking.done()
    lab.b.loop.resume()
    lab.run(1)
    assert asking.result() == b"late"


def test_the_real_client_says_how_its_connection_ended(lab: Lab) -> None:
    lab.serve()

    async def client() -> None:
        await Connection.open("b", PORT, client_id="c", timeout_s=5)

    with pytest.raises(ClientError, match="not to a Kafka broker"):
        lab.result(client())  # an echo is no answer
    lab.b.kill()
    assert "refused" in lab.result(connect_error())


def test_a_server_closes_with_its_answers_written(lab: Lab) -> None:
    lab.serve()
    reader, writer = lab.connected()
    assert lab.result(exchange(reader, writer, b"x")) == b"x"
    assert lab.b.loop is not None
    closing = lab.b.loop.create_task(lab.server.close(5))
    lab.run(1)
    assert closing.done()
    assert lab.result(outcome(reader)) == "end"
    lab.b.kill()
    lab.serve()
    assert lab.result(exchange(*lab.connected(), b"again")) == b"again"


def test_descriptors_and_the_network_forget_what_is_closed(lab: Lab) -> None:
    lab.serve()
    numbers = set()
    for _ in range(20):
        _, writer = lab.connected()
        numbers.add(writer.get_extra_info("socket").fileno())
        lab.result(close(writer))
        lab.run(1)
    assert len(numbers) == 1, "the lowest free number is taken"
    assert lab.network.host(lab.a).connected == lab.network.host(lab.b).connected == []
