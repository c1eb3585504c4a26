"""A program with librdkafka that commits one transaction after another, until it is fenced.

    python -m integration_tests.transaction_writer BOOTSTRAP TRANSACTIONAL_ID TOPIC NAME

Each transaction has two records in each of PARTITIONS partitions. The program prints `begun N` when
all records of transaction N are written, and `committed N` after its commit. Once it is fenced, it
prints `fenced` and ends with exit code FENCED.
"""

from __future__ import annotations

import itertools
import sys
from typing import Final

import confluent_kafka

from unit_tests.patience import PATIENCE_S

PARTITIONS: Final = 2
PER_PARTITION: Final = 2
FENCED: Final = 3
_TRANSACTION_TIMEOUT_MS: Final = 600_000


def value_of(name: str, transaction: int, number: int) -> bytes:
    return f"{name}:{transaction}:{number}".encode()


def run(bootstrap: str, transactional_id: str, topic: str, name: str) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
            "log_level": 0,
        }
    )
    producer.init_transactions(PATIENCE_S)
    for transaction in itertools.count():
        producer.begin_transaction()
        for partition, number in itertools.product(range(PARTITIONS), range(PER_PARTITION)):
            producer.produce(topic, value_of(name, transaction, number), partition=partition)
        producer.flush(PATIENCE_S)
        print(f"begun {transaction}", flush=True)
        producer.commit_transaction(PATIENCE_S)
        print(f"committed {transaction}", flush=True)


def main() -> None:
    try:
        run(*sys.argv[1:])
    except confluent_kafka.KafkaException as error:
        reason = error.args[0]
        print(f"error {reason.code()} {reason.str()}", flush=True)
        if reason.code() != confluent_kafka.KafkaError._FENCED:
            raise
        print("fenced", flush=True)
        sys.exit(FENCED)


if __name__ == "__main__":
    main()
