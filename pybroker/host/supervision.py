"""The decisions of the supervisor of `pybroker start --brokers N`: events in, effects out. Nothing
here starts a process, reads a clock or waits; `supervisor.py` does.

A broker that has served once is started again whenever it ends, after a growing pause. If a broker
fails its very first start, all are stopped, because only the operator can repair that. At the end
the brokers are stopped one after the other, the last one first, so that each can hand over its
leaderships.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
STEADY_S: Final = 60.0
"""A broker that has served for this time begins with the first pause again."""
STOP_MAX_S: Final = 60.0
"""The time that a broker may take to stop before it is killed."""
EXIT_REFUSED: Final = 1
"""A broker's exit code if it cannot start and has printed the reason."""


class State(Enum):
    """The state of one broker."""

    NEW = auto()
    STARTING = auto()
    SERVING = auto()
    PAUSING = auto()
    """It ended, and will be started again."""
    STOPPING = auto()
    """It got SIGTERM and has not ended yet."""
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
    """Start the broker's process."""

    broker: int


@dataclass(frozen=True, slots=True)
class LaunchLater:
    """Call `due` for the broker after the pause."""

    broker: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM; call `overdue` if the broker has not ended after STOP_MAX_S."""

    broker: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL."""

    broker: int


@dataclass(frozen=True, slots=True)
class AllServe:
    """Every broker has served at least once."""


@dataclass(frozen=True, slots=True)
class Finish:
    """No broker runs any more, and none will be started."""

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
    """Brokers 0 to `count` - 1. Times are seconds of one clock that never goes back."""

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
        """Start all."""
        return [self._launch(broker) for broker in range(len(self._brokers))]

    def served(self, broker: int, now_s: float) -> list[Effect]:
        """The broker has sent its readiness message."""
        found = self._brokers[broker]
        if found.state is not State.STARTING:
            return []  # it got SIGTERM meanwhile
        found.become(State.SERVING)
        found.has_served = True
        found.serving_since_s = now_s
        if self._all_served or not all(each.has_served for each in self._brokers):
            return []
        self._all_served = True
        return [AllServe()]

    def ended(self, broker: int, exit_code: int, now_s: float) -> list[Effect]:
        """The broker's process has ended."""
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
        """The pause of a broker is over."""
        if self._brokers[broker].state is not State.PAUSING:
            return []
        return [self._launch(broker)]

    def stop(self) -> list[Effect]:
        """Stop all brokers one after the other. A second call stops the remaining ones at once."""
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
        """The broker has not ended within STOP_MAX_S after SIGTERM."""
        if self._brokers[broker].state is not State.STOPPING:
            return []
        self._exit_code = EXIT_REFUSED
        return [Kill(broker)]

    def _launch(self, broker: int) -> Launch:
        self._brokers[broker].become(State.STARTING)
        return Launch(broker)

    def _running(self) -> list[int]:
        """The brokers that run and have not got SIGTERM, in the order of their stop."""
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
