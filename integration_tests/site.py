"""The HTTP pages of a running broker, for tests that check metrics and health."""

from __future__ import annotations

import http.client
import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from unit_tests.patience import PATIENCE_S

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Site:
    """The HTTP server of a broker."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str) -> tuple[int, str]:
        """Request a page. Return status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def ready(self) -> tuple[int, dict[str, Any]]:
        status, body = self.ask("/readyz")
        return status, json.loads(body)["conditions"]

    def samples(self) -> Samples:
        status, body = self.ask("/metrics")
        assert status == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(body)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples().get((name, frozenset(labels.items())), 0.0)
