"""A broker that freezes under load costs an agent no more memory than the settings say."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.shipping import fill, make_topic, shipping, shipping_settings, wait_until

from moescope.producers.shipping.client import KafkaClients

if TYPE_CHECKING:
    import pytest
    from support.broker_choice import Broker

CAP = 1 << 20
SIZE = 200_000
BATCHES = 200


def test_bytes_on_their_way_stay_below_the_cap(
    own_broker: Broker, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 80 MB to send and nobody who answers, each client gets 1 MiB at most."""
    given: Counter[int] = Counter()
    send = KafkaClients.send

    def counting(self: KafkaClients, client: Any, *arguments: Any) -> None:
        given[client.generation] += len(arguments[2])
        send(self, client, *arguments)

    settings = shipping_settings(own_broker.bootstrap, topic_prefix, kafka_in_flight_bytes=CAP)
    make_topic(settings)
    nodes = ("node-a", "node-b")
    with shipping(settings, tmp_path) as at_work:
        for node in nodes:
            fill(tmp_path, node, range(1))
        wait_until(lambda: at_work.shipper.totals.shipped_batches == 2, "not shipped")
        own_broker.pause()
        try:
            monkeypatch.setattr(KafkaClients, "send", counting)
            before = _resident_bytes()
            for node in nodes:
                fill(tmp_path, node, range(1, 1 + BATCHES), size=SIZE)
            told: list[float] = []

            def is_given_up() -> bool:
                told.append(at_work.metrics.value("moescope_agent_in_flight_bytes"))
                return at_work.shipper.trouble is not None

            wait_until(is_given_up, "the silence went unnoticed")
            most = max(given.values())
            grown = _resident_bytes() - before
        finally:
            own_broker.resume()
        assert 0 < most <= CAP
        assert max(told) <= CAP
        assert grown < len(nodes) * BATCHES * SIZE / 2


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
