"""Names that an imported file gets: the same for the same content and options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImportIdentity:
    """Who an imported file is in the log.

    Attributes:
        node: Node, partition and watermark domain.
        incarnation: Unsigned 64 bits.
    """

    node: str
    incarnation: int

    @classmethod
    def from_digest(cls, digest: bytes) -> ImportIdentity:
        """Derive the names from a SHA-256 digest."""
        return cls(f"import-{digest[:8].hex()}", int.from_bytes(digest[8:16], "little"))
