"""The decisions of the supervisor of `pybroker start --brokers N`: functions receive events and
return effects, which `supervisor.py` carries out.

A broker that ends after it has served clients is started again, after a growing pause. If a broker
fails its very first start, all brokers are stopped, one after another, so that each can hand its
leaderships over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
STEADY_S: Final = 60.0
"""If a broker has served for at least this time (s) before it ends, the pause before its next start
is the shortest one again."""
STOP_MAX_S: Final = 60.0
"""How long (s) a broker may take to stop after SIGTERM. Then it is killed."""
EXIT_REFUSED: Final = 1
"""The exit code of a broker that cannot start and has printed the reason."""


class State(Enum):
    """The state of one broker's process."""

    NEW = auto()
    STARTING = auto()
    SERVING = auto()
    PAUSING = auto()
    """The process has ended and will be started again after a pause."""
    STOPPING = auto()
    """The process has received SIGTERM and has not ended yet."""
    ENDED = auto()


MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.NEW: frozenset({State.STARTING, State.ENDED}),
    State.STARTING: frozenset({State.SERVING, State.PAUSING, State.STOPPING, State.ENDED}),
    State.SERVING: frozenset({State.PAUSING, State.STOPPING, State.ENDED}),
    State.PAUSING: frozenset({State.STARTING, State.ENDED}),
    State.STOPPING: frozenset({State.ENDED}),
    State.ENDED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Launch:
    """An effect: start the broker's process."""

    broker: int


@dataclass(frozen=True, slots=True)
class LaunchLater:
    """An effect: call `Supervision.due` for the broker after `pause_s`."""

    broker: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Terminate:
    """An effect: send SIGTERM to the broker. If the broker still runs after STOP_MAX_S, call
    `Supervision.overdue`."""

    broker: int


@dataclass(frozen=True, slots=True)
class Kill:
    """An effect: send SIGKILL to the broker."""

    broker: int


@dataclass(frozen=True, slots=True)
class AllServe:
    """An effect that the caller carries out: report that every broker has served at least once."""


@dataclass(frozen=True, slots=True)
class Finish:
    """An effect: end the supervisor with this exit code. No broker runs, and none will be
    started."""

    exit_code: int


Effect = Launch | LaunchLater | Terminate | Kill | AllServe | Finish


@dataclass(slots=True)
class _Broker:
    state: State = State.NEW
    has_served: bool = False
    serving_since_s: float = 0.0
    next_pause_s: float = PAUSE_FIRST_S

    def become(self, state: State) -> None:
        assert state in MOVES[self.state], f"{self.state} -> {state}"
        self.state = state


class Supervision:
    """The states of the brokers 0 to `count` - 1. Each method handles an event and returns the
    effects to carry out. Times are seconds of one monotonic clock."""

    def __init__(self, count: int) -> None:
        self._brokers = [_Broker() for _ in range(count)]
        self._stopping = False
        self._all_served = False
        self._exit_code = 0

    @property
    def stopping(self) -> bool:
        return self._stopping

    def state(self, broker: int) -> State:
        return self._brokers[broker].state

    def begin(self) -> list[Effect]:
        """Return the effects that start all brokers."""
        return [self._launch(broker) for broker in range(len(self._brokers))]

    def served(self, broker: int, now_s: float) -> list[Effect]:
        """Handle a broker's message that the broker serves clients."""
        found = self._brokers[broker]
        if found.state is not State.STARTING:
            return []  # the broker got SIGTERM meanwhile
        found.become(State.SERVING)
        found.has_served = True
        found.serving_since_s = now_s
        if self._all_served or not all(each.has_served for each in self._brokers):
            return []
        self._all_served = True
        return [AllServe()]

    def ended(self, broker: int, exit_code: int, now_s: float) -> list[Effect]:
        """Handle the end of a broker's process."""
        found = self._brokers[broker]
        if found.state is State.SERVING and now_s - found.serving_since_s >= STEADY_S:
            found.next_pause_s = PAUSE_FIRST_S
        if self._stopping:
            found.become(State.ENDED)
            return self._next_to_stop()
        if exit_code == EXIT_REFUSED and not found.has_served:
            found.become(State.ENDED)
            self._exit_code = EXIT_REFUSED
            return self.stop()
        found.become(State.PAUSING)
        pause_s = found.next_pause_s
        found.next_pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return [LaunchLater(broker, pause_s)]

    def due(self, broker: int) -> list[Effect]:
        """Start the broker again, because the pause after its end is over. Do nothing if `stop` was
        called during the pause."""
        if self._brokers[broker].state is not State.PAUSING:
            return []
        return [self._launch(broker)]

    def stop(self) -> list[Effect]:
        """Stop all brokers one after another. The second call sends SIGTERM to all remaining
        brokers at the same time."""
        again, self._stopping = self._stopping, True
        for found in self._brokers:
            if found.state in (State.NEW, State.PAUSING):
                found.become(State.ENDED)
        if not again:
            return self._next_to_stop()
        effects: list[Effect] = []
        for broker in self._running():
            self._brokers[broker].become(State.STOPPING)
            effects.append(Terminate(broker))
        return effects

    def overdue(self, broker: int) -> list[Effect]:
        """Handle that a broker has not ended within STOP_MAX_S after SIGTERM: kill it."""
        if self._brokers[broker].state is not State.STOPPING:
            return []
        self._exit_code = EXIT_REFUSED
        return [Kill(broker)]

    def _launch(self, broker: int) -> Launch:
        self._brokers[broker].become(State.STARTING)
        return Launch(broker)

    def _running(self) -> list[int]:
        """Return the running brokers that have not received SIGTERM, the highest number first."""
        return [
            broker
            for broker, found in reversed(list(enumerate(self._brokers)))
            if found.state in (State.STARTING, State.SERVING)
        ]

    def _next_to_stop(self) -> list[Effect]:
        if any(found.state is State.STOPPING for found in self._brokers):
            return []
        for broker in self._running():
            self._brokers[broker].become(State.STOPPING)
            return [Terminate(broker)]
        return [Finish(self._exit_code)]
