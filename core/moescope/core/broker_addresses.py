"""Addresses of brokers as people write them: `kafka-1:9092, [::1]:9092`."""

from __future__ import annotations

import re
from typing import Final

_ADDRESS: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[\w](?:[\w.-]*[\w])?\.?):(?P<port>[0-9]{1,5})",
    re.ASCII,
)
_HIGHEST_PORT: Final = 65_535


def broker_addresses(text: str) -> list[str]:
    """The addresses in a list that commas part, each as host:port.

    Raises:
        ValueError: One is none.
    """
    addresses = [each.strip() for each in text.split(",") if each.strip()]
    for address in addresses:
        found = _ADDRESS.fullmatch(address)
        if found is None:
            raise ValueError(
                f"expected host:port, with commas between several, and IPv6 addresses in brackets "
                f"such as [::1]:9092; not {address!r}"
            )
        if not 1 <= int(found["port"]) <= _HIGHEST_PORT:
            raise ValueError(f"expected a port from 1 to {_HIGHEST_PORT}, not {found['port']}")
    return addresses
