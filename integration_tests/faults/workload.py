"""The process in which the clients of a workload run, each in its own thread.

    python -m integration_tests.faults.workload SETTINGS

Lines on its standard input are commands: `progress` (print as JSON the acknowledged values of each
producer by partition, the values of each reader, and the errors of each producer's failed values),
`stop-producers`, `stop`. The process ends after `stop`, or when its standard input ends.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterable
from typing import Protocol

from integration_tests.faults import consumers, producers
from integration_tests.faults.settings import decode
from pybroker.testing.history.ops import OpsLog


def main() -> int:
    settings = decode(sys.argv[1])
    # Log lines of our client must not mix with our answers.
    said = settings.ops_folder / f"clients-{settings.incarnation}.log"
    logging.basicConfig(filename=said, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    log = OpsLog(settings.ops_folder, f"workload-{settings.topic}-{settings.incarnation}")
    readers = {
        name: consumers.KINDS[name](name, settings, log)
        for name in settings.clients
        if name in consumers.KINDS
    }
    senders = {
        name: producers.KINDS[name](name, settings, log)
        for name in settings.clients
        if name in producers.KINDS
    }
    _say("workload runs")
    for line in sys.stdin:
        match line.strip():
            case "progress":
                acked = {name: sender.acked for name, sender in senders.items()}
                delivered = {name: reader.delivered for name, reader in readers.items()}
                failed = {name: dict(sender.failed) for name, sender in senders.items()}
                _say("progress " + json.dumps([acked, delivered, failed]))
            case "stop-producers":
                _stop(senders.values())
                _say("producers stopped")
            case _:
                break
    _stop([*senders.values(), *readers.values()])
    log.close()
    _say("workload stopped")
    return 0


class Client(Protocol):
    def stop(self) -> None: ...


def _stop(clients: Iterable[Client]) -> None:
    """Stop all clients concurrently, because each may have to wait for the outcomes of its last
    values.
    """
    threads = [threading.Thread(target=client.stop) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
