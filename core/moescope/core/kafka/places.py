"""How a place in a topic is named everywhere: in tables, metrics, headers and messages."""

from __future__ import annotations


def partition_name(topic: str, partition: int) -> str:
    """Name of a topic's partition, for example `moescope.routing-3`."""
    return f"{topic}-{partition}"


def partition_number(name: str) -> int:
    """The number in a partition's name."""
    return int(name.rpartition("-")[2])
