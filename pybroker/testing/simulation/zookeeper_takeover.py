"""For simulated clusters: closes the ZooKeeper session that an earlier process of a broker left
open."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.zookeeper_wire import (
    CloseSession,
    Connect,
    Granted,
    Service,
    Signal,
    Wire,
)

_TIMEOUT_S: Final = 2.0


async def end_session(
    service: Service, loop: ProcessLoop, machine: str, session_id: int, members: Sequence[str]
) -> bool:
    """Take over the session and close it, which deletes its ephemeral nodes. Try the members one
    after another. Return whether any member has answered."""
    rng = service.environment.rng(f"zookeeper takeover {loop.name} {session_id:x}")
    for name in rng.sample(members, len(members)):
        heard: asyncio.Future[bool] = loop.create_future()
        hear = partial(loop.call_soon, _close_when_granted, heard)
        wire = Wire(service.links, machine, service.members[name], rng, hear)
        wire.send(Connect(session_id, 0, service.session_ms_min))
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                if await heard:
                    return True
        except TimeoutError:
            continue
        finally:
            wire.close(lose=False)
    return False


def _close_when_granted(heard: asyncio.Future[bool], wire: Wire, message: object) -> None:
    """If the server grants the session, close the session. Otherwise set `heard`: True if the
    session has ended, False if the connection has ended."""
    if isinstance(message, Granted) and message.session_id:
        wire.send(CloseSession())
    elif not heard.done():
        heard.set_result(message is not Signal.END)
