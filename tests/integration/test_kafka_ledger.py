"""What the byte cap removes: dropped is what nobody got, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.rings import ids_of, small_recorder
from support.shipping import arrived, make_topic, shipping, shipping_settings, wait_until

from moescope.core.batchlog import BatchLogReader, WriterSettings
from moescope.producers.agent import Agent, AgentSettings

if TYPE_CHECKING:
    from pathlib import Path

    from support.broker_choice import SharedBroker

    from moescope.producers.shipping import Shipper

BYTE_CAP = 4_096
NEVER = 3_600.0


def test_what_was_acknowledged_since_the_cursor_was_saved_is_not_dropped(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Whoever makes room asks the shipper first: a batch is never both delivered and dropped."""
    settings = shipping_settings(kafka_broker.bootstrap, topic_prefix)
    make_topic(settings)
    log = tmp_path / "log"
    with (
        shipping(settings, log, save=NEVER) as at_work,
        Agent(
            tmp_path / "ring",
            log,
            settings=AgentSettings(log=WriterSettings(byte_cap=BYTE_CAP)),
            before_drop=at_work.shipper.save_cursor,
        ) as agent,
        small_recorder(tmp_path / "ring") as recorder,
    ):
        for serial in range(30):
            recorder.record("r", [serial], ids_of([serial]), "decode", token_ids=[serial])
            agent.run_once(flush=True)
            wait_until(lambda: _has_shipped_all(at_work.shipper, agent), "not shipped")
        logged = agent.counters().shipped.batches
    with BatchLogReader(log, "node-a") as reader:
        ledger = reader.drops()
    assert ledger.released_records == ledger.first_offset > 0
    assert ledger.dropped_records == 0
    assert len(arrived(settings)) == logged


def _has_shipped_all(shipper: Shipper, agent: Agent) -> bool:
    return shipper.totals.shipped_batches == agent.counters().shipped.batches
