"""The topic options on which elections depend, read from ZooKeeper before each decision that needs
them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from pybroker.config.broker_config import BrokerConfig
from pybroker.config.topic_config import TopicConfig, usable_overrides
from pybroker.coordinator.controller.reading import read_each
from pybroker.coordinator.controller.topics import topic_configs
from pybroker.errors import MalformedNode
from pybroker.ports import Coord

log = logging.getLogger(__name__)

_MIN_ISR = "min.insync.replicas"
_UNCLEAN = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class Policy:
    """min.insync.replicas and unclean.leader.election.enable of a topic."""

    min_insync_replicas: int = 1
    unclean_elections: bool = False


PolicyOf = Callable[[Mapping[str, str]], Policy]
"""A function that returns the policy of a topic from the options that are set for the topic."""


def policy_of(broker: BrokerConfig, overrides: Mapping[str, str]) -> Policy:
    """Return the topic's policy. An invalid min.insync.replicas in `overrides` is ignored. An
    invalid unclean.leader.election.enable forbids unclean elections."""
    own = {name: overrides[name] for name in (_MIN_ISR, _UNCLEAN) if name in overrides}
    if not own:
        return Policy(broker.min_insync_replicas, broker.unclean_leader_election_enable)
    usable, _ = usable_overrides(broker, own)
    config = TopicConfig.parse(broker, usable)
    is_read = _UNCLEAN in usable or _UNCLEAN not in own
    return Policy(config.min_insync_replicas, is_read and config.unclean_leader_election_enable)


class Policies:
    """The policies of topics (see `Policy`), as last read by `load`."""

    def __init__(self, coord: Coord, policy_of: PolicyOf) -> None:
        self._coord = coord
        self._policy_of = policy_of
        self._policies: dict[str, Policy] = {}

    async def load(self, topics: Collection[str]) -> None:
        """Read the present configurations of these topics. Raises CoordError."""
        self._policies = await read_each(self._read, topics)

    def of(self, topic: str) -> Policy:
        """Return the topic's policy as last loaded. If the topic was not loaded, return a policy
        without unclean elections."""
        return self._policies.get(topic, _CAUTIOUS)

    async def _read(self, topic: str) -> Policy:
        try:
            return self._policy_of(await topic_configs(self._coord, topic))
        except MalformedNode as error:
            log.error("topic options ignored topic=%s reason=%s", topic, error)
            return replace(self._policy_of({}), unclean_elections=False)


_CAUTIOUS = Policy()
