"""A fleet whose password is wrong, then right, then revoked: loud, and nothing is lost."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka import TopicPartition
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion
from kafka.errors import SaslAuthenticationFailedError
from support import broker_choice
from support.fleet import RECOVERY_S, Fleet, log_ends
from support.fleet_judge import judge_store
from support.fleet_load import Machine
from support.fleet_processes import Nursery, wait_for
from support.kafka_broker import KafkaBroker

from moescope.core.kafka import open_admin, open_consumer
from moescope.core.kafka.ends import end_offsets
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fleet import Member

USER = "fleet"
MACHINES = (Machine("east", 51), Machine("west", 52, nodes=1))
REFUSED = 3
"""Exit code of whoever a supervisor should start again."""
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def secure_broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A broker that asks for a password at one of its ports."""
    broker_choice.require_native()
    with KafkaBroker(tmp_path / "kafka", scram_users={USER: "first"}) as broker:
        yield broker


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Makes processes, of which none is left."""
    with Nursery(tmp_path / "logs") as made:
        yield made


class _Guarded:
    """A fleet that has to show a password."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._heard: dict[str, int] = {}

    @property
    def consumers(self) -> list[Member]:
        """Those that end when they are refused."""
        return [self.fleet.owner, *self.fleet.workers]

    def see_refusals(self) -> None:
        """Agents wait; processor and owner end, to be started again; all say why."""
        fleet = self.fleet
        for member in self.consumers:
            assert member.now.exit_code(RECOVERY_S) == REFUSED, member.now.last_words()
        for agent in fleet.agents:
            wait_for(f"{agent.name} waits", partial(_is_refused, agent), RECOVERY_S)
        for member in (*self.consumers, *fleet.agents):
            said = self._news(member)
            assert "The Kafka broker refused" in said, said
            assert "Authentication" in said, said
            assert "Check kafka.security_protocol, the user" in said, said

    def _news(self, member: Member) -> str:
        """What a member wrote since this was asked."""
        text = member.now.log.read_text()
        before = self._heard.get(member.name, 0)
        self._heard[member.name] = len(text)
        return text[before:]

    def start_again(self) -> None:
        """Start those that had ended; agents, too, since that is quicker than their next try."""
        for agent in self.fleet.agents:
            agent.now.kill()
        for member in (*self.fleet.agents, *self.consumers):
            self.fleet.start(member)


def test_a_fleet_that_is_refused_says_so_and_goes_on_with_the_right_password(
    nursery: Nursery, tmp_path: Path, secure_broker: KafkaBroker, topic_prefix: str
) -> None:
    """Wrong at first, and revoked at work: agents keep what they have, and every batch counts."""
    password = tmp_path / "password"
    fleet = Fleet(
        nursery, tmp_path / "fleet", secure_broker.bootstrap, topic_prefix, MACHINES, processors=1,
        settings={
            "kafka.bootstrap_servers": str(secure_broker.sasl_bootstrap),
            "kafka.security_protocol": "SASL_PLAINTEXT",
            "kafka.sasl_mechanism": "SCRAM-SHA-512",
            "kafka.sasl_username": USER,
            "kafka.sasl_password_file": str(password),
        },
    )  # fmt: skip
    guarded = _Guarded(fleet)
    password.write_text("first\n")
    fleet.make_topics()

    password.write_text("wrong\n")
    for member in (*fleet.agents, *guarded.consumers):
        fleet.start(member)
    fleet.start_load(300)
    guarded.see_refusals()

    password.write_text("first\n")
    guarded.start_again()
    fleet.wait_for_owner()
    logged = {path: end for root in fleet.log_roots() for path, end in log_ends(root).items()}
    assert logged
    fleet.wait_until_shipped()

    with closing(open_consumer(fleet.loaded())) as connected:
        _change_password(secure_broker, "second")
        secure_broker.kill()
        secure_broker.start()
        # The broker's answer is often lost with the connection: the end alone has to be enough.
        with pytest.raises(SaslAuthenticationFailedError):
            end_offsets(connected, [TopicPartition(fleet.routing, 0)], 20_000)
    guarded.see_refusals()

    password.write_text("second\n")
    guarded.start_again()
    fleet.end_load()
    fleet.check()
    fleet.stop_all()
    topic = fleet.read_routing()
    # Pauses of agents that are long enough set nodes aside: that alone may differ.
    verdict = judge_store(
        fleet.store_file, fleet.store_alone(), topic, fleet.log_roots(), fleet.config
    )
    assert verdict.assignments
    assert (verdict.missing, verdict.lost, verdict.twice) == (0, 0, 0), verdict


def _is_refused(agent: Member) -> bool:
    folder = Path(agent.variables["MOESCOPE_DATA_DIRECTORY"])
    (report,) = [json.loads(file.read_text()) for file in folder.glob("health-agent-*.json")]
    return report["status"] == "waiting" and "refused" in report["why"]


def _change_password(broker: KafkaBroker, password: str) -> None:
    settings = load_settings(environment={}, options={"kafka.bootstrap_servers": broker.bootstrap})
    change = UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_512, password)
    with closing(open_admin(settings)) as admin:
        admin.alter_user_scram_credentials([change])
