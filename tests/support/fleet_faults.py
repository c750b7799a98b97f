"""What is done to a fleet under load, and how long it takes until everything is stored again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from support.fleet import RECOVERY_S, takes_part
from support.fleet_processes import wait_for
from support.fleet_topic import end_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from support.broker_choice import Broker
    from support.fleet import Fleet, Member
    from support.fleet_ring import RingMachine

LONGEST_PAUSE_S = 0.8
"""Between a recovery and the next fault: anywhere in the next commit or two."""
BEYOND_SESSION_S = 2.5


class Fault(StrEnum):
    """What happens."""

    PROCESSOR_KILLED = "processor killed"
    AGENT_KILLED = "agent killed"
    OWNER_KILLED = "store owner killed"
    BROKER_KILLED = "broker killed"
    REBALANCE = "rebalance forced"
    PROCESSOR_PAUSED = "processor paused beyond its session"


@dataclass
class Recoveries:
    """Seconds from each fault until everything that was in the topic then was stored."""

    seconds: dict[Fault, list[float]] = field(default_factory=dict)

    def all(self) -> list[float]:
        """Of every fault."""
        return [each for kind in self.seconds.values() for each in kind]


class Saboteur:
    """Does things to a fleet, one after the other.

    Args:
        fleet: Running, under load.
        broker: Its own; needed where it is killed.
        chance: Decides whom and when.
        programs: Share of restarts that use the real command instead of a warm process.
        rings: Its agent is killed whenever one of the fleet's is.
    """

    def __init__(
        self,
        fleet: Fleet,
        broker: Broker | None,
        chance: Random,
        programs: float = 0.0,
        rings: RingMachine | None = None,
    ) -> None:
        self._fleet, self._broker, self._chance = fleet, broker, chance
        self._programs, self._rings = programs, rings
        self._is_away = False
        self.recoveries = Recoveries()
        self._acts: dict[Fault, Callable[[], None]] = {
            Fault.PROCESSOR_KILLED: self._kill_processor,
            Fault.AGENT_KILLED: self._kill_agent,
            Fault.OWNER_KILLED: self._kill_owner,
            Fault.BROKER_KILLED: self._kill_broker,
            Fault.REBALANCE: self._force_rebalance,
            Fault.PROCESSOR_PAUSED: self._pause_processor,
        }

    def run(
        self, faults: Mapping[Fault, int], told: Callable[[str], None] = lambda _: None
    ) -> None:
        """Do everything so many times, in random order, waiting for recovery after each.

        Raises:
            FleetError: The fleet did not recover within a minute of the fault, or a part of it
                ended by itself.
        """
        order = [fault for fault, times in faults.items() for _ in range(times)]
        self._chance.shuffle(order)
        for number, fault in enumerate(order, start=1):
            time.sleep(self._chance.random() * LONGEST_PAUSE_S)
            ends = end_offsets(self._fleet.bootstrap, self._fleet.routing)
            begin = time.monotonic()
            self._acts[fault]()
            if fault is Fault.OWNER_KILLED:
                self._fleet.wait_for_owner(begin)
            if fault in (Fault.AGENT_KILLED, Fault.BROKER_KILLED):
                # What the logs held is to arrive as well.
                self._fleet.wait_until_shipped(RECOVERY_S, begin)
                ends = end_offsets(self._fleet.bootstrap, self._fleet.routing)
            seconds = self._fleet.wait_until_stored(ends, start=begin)
            self._fleet.check()
            if self._rings is not None:
                self._rings.check()
                if fault is Fault.AGENT_KILLED:
                    self._rings.wait_until_shipped(begin)
            self._fleet.wait_for_standby()
            self.recoveries.seconds.setdefault(fault, []).append(seconds)
            told(f"{number}/{len(order)} {fault}: {seconds:.1f} s")
        if self._is_away:
            self._force_rebalance()

    def _kill_processor(self) -> None:
        worker = self._chance.choice(self._fleet.working())
        worker.now.kill()
        self._restart(worker)

    def _kill_agent(self) -> None:
        agent = self._chance.choice(self._fleet.agents)
        agent.now.kill()
        if self._rings is not None:
            self._rings.kill_agent()
        self._restart(agent)

    def _kill_owner(self) -> None:
        fleet = self._fleet
        fleet.owner.now.kill()
        fleet.owner, fleet.standby = fleet.standby, fleet.owner
        self._restart(fleet.standby)

    def _restart(self, member: Member) -> None:
        self._fleet.start(member, as_program=self._chance.random() < self._programs)

    def _kill_broker(self) -> None:
        assert self._broker is not None
        self._broker.kill()
        self._broker.start()

    def _force_rebalance(self) -> None:
        """One processor without a fixed name leaves, or comes back."""
        worker = self._fleet.workers[-1]
        if self._is_away:
            self._fleet.start(worker)
            wait_for(f"{worker.name} takes part", lambda: takes_part(worker), RECOVERY_S)
        else:
            worker.now.stop()
            worker.process = None
        self._is_away = not self._is_away

    def _pause_processor(self) -> None:
        worker = self._chance.choice(self._fleet.working())
        worker.now.pause()
        time.sleep(float(self._fleet.common["kafka.session_timeout"]) + BEYOND_SESSION_S)
        worker.now.resume()
