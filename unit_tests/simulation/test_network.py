"""The simulated network: asyncio's streams, the real server and the real client run on it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import pytest

from pybroker.client.connection import Connection
from pybroker.errors import ErrorCode
from pybroker.server.connection import Answer, Peer
from pybroker.server.limits import ServerLimits
from pybroker.server.listener import Server
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.world import World
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import FetchResponse
from pybroker.wire.messages.produce import ProduceResponse
from unit_tests.handlers.bench import LISTENER, Bench, batch, fetch_request, produce_request
from unit_tests.simulation.network_lab import (
    PORT,
    SEEDS,
    Lab,
    connect_error,
    exchange,
    framed,
    outcome,
    read_frame,
)
from unit_tests.simulation.processes import outputs_of


@pytest.fixture(params=SEEDS[:3])
def lab(request: pytest.FixtureRequest) -> Any:
    made = Lab(request.param)
    yield made
    made.end()


# the real server and client


def test_a_real_broker_and_the_real_client_talk_over_it(tmp_path: Path) -> None:
    lab = Lab()

    async def broker(_loop: ProcessLoop) -> None:
        bench = Bench(tmp_path, clock=lab.b.clock)
        await bench.start()

        def handle(frame: memoryview, peer: Peer) -> Answer | Awaitable[Answer]:
            return bench.app.dispatcher.answer(frame, LISTENER, peer.host)

        server = Server(handle=handle, limits=ServerLimits(), clock=lab.b.clock)
        await server.open([(LISTENER, lab.network.listen(lab.b, "b", PORT))])
        await bench.create("t")

    async def client() -> bytes:
        connection = await Connection.open(
            "b", PORT, client_id="c", timeout_s=5, receive_buffer_bytes=65536
        )
        request = produce_request("t", {0: batch(b"value")}, acks=-1)
        produced = await connection.send(ApiKey.PRODUCE, request, ProduceResponse, timeout_s=5)
        assert produced.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        fetched = await connection.send(
            ApiKey.FETCH, fetch_request(("t", 0, 0)), FetchResponse, timeout_s=5
        )
        await connection.close()
        return bytes(fetched.responses[0].partitions[0].records or b"")

    lab.start(lab.b, broker)
    lab.run(1)
    assert b"value" in lab.result(client())
    lab.end()


def test_frames_are_answered_in_order_whatever_the_pieces(lab: Lab) -> None:
    lab.network.splits = 0.7
    lab.serve()
    reader, writer = lab.connected()

    async def client() -> list[bytes]:
        for number in range(200):
            writer.write(framed(b"%d" % number * 50))
        return [await read_frame(reader) for _ in range(200)]

    assert lab.result(client()) == [b"%d" % number * 50 for number in range(200)]
    assert writer.get_extra_info("peername") == ("10.0.0.2", PORT)
    assert writer.get_extra_info("sockname")[0] == "10.0.0.1"


# the stream


async def collect(reader: asyncio.StreamReader, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        data = await reader.read(70_000)
        assert data, f"the end of data after {len(received)} bytes"
        received += data
    return bytes(received)


@pytest.mark.parametrize("splits", [0.0, 0.3, 1.0])
def test_a_million_bytes_arrive_whole_and_in_order_however_they_are_split(
    lab: Lab, splits: float
) -> None:
    lab.network.splits = splits
    lab.network.window_bytes = 30_000
    lab.serve()
    reader, writer = lab.connected()
    rng = random.Random(1)
    sent = framed(rng.randbytes(1_000_000))

    async def write() -> None:
        start = 0
        while start < len(sent):
            end = start + rng.choice([1, 3, 1000, 5000, 200_000])
            writer.write(memoryview(sent)[start:end])
            await writer.drain()
            start = end

    async def client() -> bytes:
        writing = asyncio.create_task(write())
        received = await collect(reader, len(sent))
        await writing
        return received

    assert lab.result(client()) == sent
    assert lab.served == [sent[4:]]


def test_what_is_written_belongs_to_the_caller_again(lab: Lab) -> None:
    lab.network.window_bytes = 1000
    lab.serve()
    reader, writer = lab.connected()

    async def client() -> bytes:
        data = bytearray(framed(b"x" * 5000))
        writer.write(data)
        data[:] = bytes(len(data))
        return await read_frame(reader)

    assert lab.result(client()) == b"x" * 5000


def test_a_peer_that_does_not_read_stops_the_writer_and_its_reading_lets_it_go_on(
    lab: Lab,
) -> None:
    lab.serve(limits=ServerLimits(write_buffer_bytes_max=10_000))
    reader, writer = lab.connected()
    number = 400
    payload = b"x" * 10_000

    async def write() -> None:
        for _ in range(number):
            writer.write(framed(payload))
            await writer.drain()

    transport = cast("asyncio.Transport", writer.transport)
    transport.pause_reading()
    writing = lab.ask(write())
    lab.run(20)
    assert not writing.done(), "the writer was not stopped"
    window = lab.network.window_bytes
    assert len(lab.served) * len(payload) < 3 * window
    assert lab.server.unsent_bytes > 0
    transport.resume_reading()

    async def read() -> int:
        for _ in range(number):
            assert await read_frame(reader) == payload
        return len(lab.served)

    assert lab.result(read()) == number
    assert lab.result(asyncio.wait_for(asyncio.shield(writing), 1)) is None
    assert lab.server.unsent_bytes == 0


def test_no_more_than_the_window_is_under_way_however_much_has_passed(lab: Lab) -> None:
    lab.serve()
    reader, writer = lab.connected()
    for _ in range(5):
        lab.result(exchange(reader, writer, bytes(100_000)))
    assert lab.b.loop is not None
    lab.b.loop.pause()
    window = lab.network.window_bytes
    writer.write(framed(bytes(3 * window)))
    lab.run(5)
    assert cast("asyncio.Transport", writer.transport).get_write_buffer_size() >= 2 * window


def test_the_end_of_data_closes_one_direction_and_answers_still_come(lab: Lab) -> None:
    waiting: list[asyncio.Future[Answer]] = []

    def handle(frame: memoryview, _peer: Peer) -> Awaitable[Answer]:
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    lab.serve(handle)
    reader, writer = lab.connected()

    async def client() -> bytes:
        writer.write(framed(b"the last one"))
        writer.write_eof()
        answer = await read_frame(reader)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        return answer

    asking = lab.ask(client())
    lab.run(1)
    waiting[0].set_result([framed(b"answered")])
    lab.run(1)
    assert asking.result() == b"answered"
    assert lab.server.connection_count == 0


def test_what_was_written_before_close_arrives_before_the_end(lab: Lab) -> None:
    lab.network.window_bytes = 5000
    lab.serve()
    _, writer = lab.connected()

    async def client() -> None:
        writer.write(framed(b"x" * 100_000))
        writer.close()
        await writer.wait_closed()

    lab.result(client())
    lab.run(2)
    assert [len(each) for each in lab.served] == [100_000]
    assert lab.server.connection_count == 0


# connecting


def test_nobody_listens_refused(lab: Lab) -> None:
    assert "connection refused" in lab.result(connect_error())
    assert lab.world.now > 0.1, "it took no time at all"


def test_an_unknown_name_is_not_found(lab: Lab) -> None:
    with pytest.raises(OSError, match="not known"):
        lab.result(asyncio.open_connection("nowhere", PORT))


def test_a_used_port_and_a_foreign_address_are_refused(lab: Lab) -> None:
    lab.serve()
    with pytest.raises(OSError, match="in use"):
        lab.network.listen(lab.b, "", PORT)
    with pytest.raises(OSError, match="assign"):
        lab.network.listen(lab.b, "a", 1)
    assert lab.network.listen(lab.b, "b", 0).getsockname()[1] > 0


@pytest.mark.parametrize("cut", [("a", "b"), ("b", "a")])
def test_to_connect_needs_both_directions_and_goes_on_once_they_are_healed(
    lab: Lab, cut: tuple[str, str]
) -> None:
    lab.serve()
    lab.links.cut(cut[0], [cut[1]])
    connecting = lab.ask(asyncio.open_connection("b", PORT))
    assert "no connection within 5 s" in lab.result(connect_error())
    assert not connecting.done()
    assert lab.server.connection_count == 0
    lab.links.heal(cut[0], [cut[1]])
    lab.run(3)
    assert connecting.result()
    assert lab.server.connection_count == 1, "the attempt that was given up came through"
    assert len(lab.network.host(lab.b).connected) == 1


def test_a_machine_without_power_is_silent_until_it_has_some_again(lab: Lab) -> None:
    lab.serve()
    lab.b.lose_power()
    assert "no connection within" in lab.result(connect_error())
    connecting = lab.ask(asyncio.open_connection("b", PORT))
    lab.run(5)
    assert not connecting.done()
    lab.serve()
    lab.run(5)
    assert connecting.result()


def test_power_is_lost_in_the_middle_of_a_handshake(lab: Lab) -> None:
    lab.serve()
    lab.links.cut("b", ["a"])
    connecting = lab.ask(asyncio.open_connection("b", PORT))
    lab.run(0.5)
    lab.b.lose_power()
    lab.links.heal("b", ["a"])
    lab.run(2)
    assert not connecting.done()
    lab.serve()
    lab.run(5)
    assert isinstance(connecting.exception(), ConnectionRefusedError)


def test_who_waits_beyond_the_backlog_gets_in_when_there_is_room(lab: Lab) -> None:
    lab.serve(limits=ServerLimits(backlog=2, connections_max=1))
    go = asyncio.Event()

    async def client() -> int:
        reader, writer = await asyncio.open_connection("b", PORT)
        await go.wait()
        await exchange(reader, writer, b"in")
        present = lab.server.connection_count
        writer.close()
        return present

    clients = [lab.ask(client()) for _ in range(3)]
    lab.run(1)
    late = lab.ask(asyncio.open_connection("b", PORT))
    lab.run(10)
    assert not late.done(), "one is accepted, two are in the queue"
    assert lab.server.connection_count == 1
    go.set()
    lab.run(20)
    assert [task.result() for task in clients] == [1, 1, 1]
    assert late.result()
    assert lab.server.connection_count == 1


def test_who_is_in_the_queue_of_a_server_that_closes_is_reset(lab: Lab) -> None:
    lab.serve(limits=ServerLimits(connections_max=1))
    lab.connected()
    reader, _ = lab.connected()
    lab.run(1)
    assert lab.b.loop is not None
    lab.tasks.append(lab.b.loop.create_task(lab.server.close(0)))
    assert lab.result(outcome(reader)) == "reset"


def test_who_accepts_one_at_a_time_is_called_again(lab: Lab) -> None:
    accepted: list[object] = []

    async def main(loop: ProcessLoop) -> None:
        listening = lab.network.listen(lab.b, "b", PORT)
        listening.listen(10)
        loop.add_reader(listening.fileno(), lambda: accepted.append(listening.accept()))

    lab.start(lab.b, main)
    assert lab.b.loop is not None
    lab.b.loop.pause()
    for _ in range(5):
        lab.connected()
    lab.b.loop.resume()
    lab.run(1)
    assert len(accepted) == 5


def test_a_connection_that_is_taken_twice_leaves_one_that_stays_silent(lab: Lab) -> None:
    lab.serve()
    for _ in range(10):
        lab.network.double_next("a", "b")
    outcomes = [lab.ask(asyncio.open_connection("b", PORT)) for _ in range(10)]
    lab.run(5)
    failed = [task for task in outcomes if task.exception() is not None]
    assert all(isinstance(task.exception(), ConnectionResetError) for task in failed)
    assert 0 < len(failed) < 10
    assert lab.server.connection_count == 20 - len(failed)


def test_a_network_that_is_mended_does_nothing_of_what_was_still_to_come(lab: Lab) -> None:
    lab.serve()
    lab.network.double_next("a", "b")
    lab.network.doubles = 1.0
    lab.network.reset_after("a", "b", 1)
    lab.network.mend()
    assert lab.result(exchange(*lab.connected(), b"whole")) == b"whole"
    assert lab.server.connection_count == 1


# the same seed


def workload(seed: str) -> World:
    """A little of everything."""
    lab = Lab(seed, keep_lines=True)
    lab.network.splits = 0.5
    lab.network.doubles = 0.2
    rng = lab.world.rng("workload")

    async def client(number: int) -> None:
        for count in range(30):
            try:
                async with asyncio.timeout(1):
                    reader, writer = await asyncio.open_connection("b", PORT)
                    for _ in range(5):
                        await exchange(reader, writer, b"%d %d" % (number, count))
                    writer.close()
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.1)

    lab.serve()
    for number in range(5):
        lab.ask(client(number))
    for _ in range(30):
        lab.run(rng.random() * 0.1)
        fault = rng.randrange(5)
        if fault == 0:
            lab.links.cut(*rng.choice([("a", ["b"]), ("b", ["a"])]))
        elif fault == 1:
            lab.links.heal_all()
        elif fault == 2:
            lab.network.reset("a", "b", one=rng.random() < 0.5)
        elif fault == 3:
            lab.network.reset_after("a", "b", rng.randrange(100))
        else:
            rng.choice([lab.b.kill, lab.b.lose_power])()
            lab.serve()
    lab.links.heal_all()
    lab.run(20)
    lab.end()
    return lab.world


PROGRAM = """
from unit_tests.simulation.test_network import workload
print([(seed, workload(seed).digest) for seed in ("1", "2", "3")])
"""


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    world = workload("1")
    assert world.lines is not None
    assert workload("1").lines == world.lines
    assert workload("2").digest != world.digest
    assert len(world.lines) > 300


def test_the_trace_does_not_hang_on_the_process() -> None:
    digests = outputs_of(PROGRAM)
    assert len(digests) == 1, digests
