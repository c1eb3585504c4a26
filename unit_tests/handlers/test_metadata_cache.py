"""Tests that answers to Metadata are cached, but only for the state of the cluster that they
describe."""

from __future__ import annotations

import pytest

from pybroker.handlers import metadata_cache
from pybroker.handlers.metadata_cache import MetadataCache, Question, State
from pybroker.model import NO_TOPIC_ID, PartitionFacts, PartitionState, TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from unit_tests.handlers.bench import BROKER_ID, Bench

NOW = State(1, 1)


def asked(body: bytes, version: int = 9, listener: str = "A") -> Question:
    return Question(version, listener, body)


def test_an_answer_is_cached_for_equal_requests_only() -> None:
    cache = MetadataCache()
    assert cache.get(NOW, asked(b"x")) is None
    cache.put(NOW, asked(b"x"), b"answer")
    assert cache.get(NOW, asked(b"x")) == b"answer"
    for other in (asked(b"y"), asked(b"x", version=8), asked(b"x", listener="B")):
        assert cache.get(NOW, other) is None


@pytest.mark.parametrize("later", [State(2, 1), State(1, 2)])
def test_another_state_empties_the_cache(later: State) -> None:
    cache = MetadataCache()
    cache.get(NOW, asked(b"x"))
    cache.put(NOW, asked(b"x"), b"answer")
    assert cache.get(later, asked(b"x")) is None
    assert len(cache) == 0
    cache.put(NOW, asked(b"x"), b"too late")
    assert cache.get(later, asked(b"x")) is None


def test_the_cache_is_limited_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_cache, "CACHED_BYTES_MAX", 100)
    monkeypatch.setattr(metadata_cache, "QUESTION_BYTES_MAX", 10)
    cache = MetadataCache()
    cache.get(NOW, asked(b""))
    for name in (b"a", b"b", b"c"):
        cache.put(NOW, asked(name), b"." * 45)
    found = [cache.get(NOW, asked(name)) is not None for name in (b"a", b"b", b"c")]
    assert found == [False, True, True]
    cache.put(NOW, asked(b"long question"), b"")
    cache.put(NOW, asked(b"d"), b"." * 100)
    assert len(cache) == 2


async def test_a_metadata_change_is_answered_at_once(bench: Bench) -> None:
    everything = MetadataRequest(topics=None)
    for number in range(3):
        answer = await bench.ask(ApiKey.METADATA, 9, everything)
        assert len(answer.topics) == number
        again = await bench.ask(ApiKey.METADATA, 9, everything)
        assert again == answer
        await bench.create(f"topic-{number}")
    orphan = PartitionFacts(
        TopicPartition("topic-0", 0),
        bench.app.metadata.topics["topic-0"].topic_id,
        PartitionState(-1, 1, (BROKER_ID,), 1),
        1,
        (BROKER_ID,),
    )
    await bench.tell(orphan)
    answer = await bench.ask(ApiKey.METADATA, 9, everything)
    leaders = {topic.name: topic.partitions[0].leader_id for topic in answer.topics}
    assert leaders == {"topic-0": -1, "topic-1": BROKER_ID, "topic-2": BROKER_ID}


async def test_another_controller_is_answered_at_once(bench: Bench) -> None:
    before = await bench.ask(ApiKey.METADATA, 9, MetadataRequest(topics=[]))
    assert before.controller_id == BROKER_ID
    bench.app.controller.session_expired()
    after = await bench.ask(ApiKey.METADATA, 9, MetadataRequest(topics=[]))
    assert after.controller_id == -1


async def test_a_request_that_creates_topics_is_never_answered_from_the_cache(bench: Bench) -> None:
    missing = [MetadataRequestTopic(topic_id=NO_TOPIC_ID, name="made")]
    silent = MetadataRequest(topics=missing, allow_auto_topic_creation=False)
    assert (await bench.ask(ApiKey.METADATA, 9, silent)).topics[0].error_code == 3
    making = MetadataRequest(topics=missing)
    assert (await bench.ask(ApiKey.METADATA, 9, making)).topics[0].error_code == 0
    assert (await bench.ask(ApiKey.METADATA, 9, silent)).topics[0].error_code == 0
