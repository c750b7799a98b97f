from __future__ import annotations

import json

import pytest

from moescope.core.clock import END_OF_TIME
from moescope.processors.nodes import NodeState, NodeTable


def table(**nodes: tuple[int, bool]) -> NodeTable:
    """Nodes of one partition: the highest step that each trained, and whether it ended."""
    made = NodeTable()
    for name, (step, ended) in nodes.items():
        node = made.node(name)
        node.highest_step = node.trained_to = step
        node.steps_ended = ended
    return made


@pytest.mark.parametrize(
    ("nodes", "reached"),
    [
        ({"a": (7, False), "b": (5, False)}, 5),
        ({"a": (7, True), "b": (5, False)}, 5),
        ({"a": (3, True), "b": (5, False)}, 5),
        ({"a": (7, True), "b": (7, True)}, 8),
        ({"a": (3, True), "b": (7, True)}, 8),
        ({"a": (7, False), "served": (-1, True)}, 7),
        ({"served": (-1, True)}, END_OF_TIME),
        ({}, END_OF_TIME),
    ],
)
def test_nodes_that_ended_hold_nobody_back(
    nodes: dict[str, tuple[int, bool]], reached: int
) -> None:
    """The slowest that still trains decides; when none does, the greatest step is over."""
    assert table(**nodes).step_low() == reached


def test_a_node_that_was_set_aside_does_not_count_as_ended() -> None:
    """Whoever is behind is not waited for, unless nobody else is left: then its step is open."""
    nodes = table(a=(7, True), b=(5, False))
    nodes.node("b").state = NodeState.SET_ASIDE
    assert nodes.step_low() == 8
    nodes.node("a").state = NodeState.SET_ASIDE
    assert nodes.step_low() == 5


def test_ends_survive_a_restart_and_an_update() -> None:
    """A processor that starts anew knows who ended; of an older one's state nobody has."""
    nodes = table(a=(7, True))
    state = json.loads(json.dumps(nodes.state()))
    again = NodeTable()
    again.restore(state)
    assert again.step_low() == nodes.step_low() == 8
    del state["nodes"][0]["trained_to"], state["nodes"][0]["steps_ended"]
    again.restore(state)
    assert again.step_low() == 7
