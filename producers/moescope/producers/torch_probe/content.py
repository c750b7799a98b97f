"""Content keys of the rows of passes, from the tokens that the passes were given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.errors import InputError
from moescope.producers.content_keys import ContentPrefix, step_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.producers.torch_probe.placing import PlacedRows


class ContentOfBatch:
    """What the requests of one batch said so far.

    Args:
        requests: B.
        key: The secret.
    """

    def __init__(self, requests: int, key: bytes) -> None:
        self._key = key
        self._prefixes = [ContentPrefix(key) for _ in range(requests)]

    def keys(
        self, placed: PlacedRows, tokens: NDArray[np.int64] | None
    ) -> NDArray[np.uint64] | None:
        """Content keys of one pass's rows.

        Args:
            placed: Where the rows are, [B, S].
            tokens: [B, S], or None where the pass was given embeddings.

        Returns:
            uint64 [B, S], 0 for padding; None where not every token before a row was seen (a prefix
            from another cache, embeddings): a key of the rest would be another text's.
        """
        if tokens is None:
            return None
        if tokens.shape[1] == 1 and self._goes_on(placed):
            return step_keys(self._prefixes, tokens[:, 0])[:, None]
        keys = np.zeros(tokens.shape, np.uint64)
        is_whole = True
        for row, is_token in enumerate(placed.is_token):
            found = self._of_row(row, placed.position[row][is_token], tokens[row][is_token])
            if found is None:
                is_whole = False
            else:
                keys[row, is_token] = found
        return keys if is_whole else None

    def _goes_on(self, placed: PlacedRows) -> bool:
        seen = [prefix.tokens for prefix in self._prefixes]
        is_next = 0 not in seen and placed.position[:, 0].tolist() == seen
        return is_next and bool(placed.is_token.all())

    def _of_row(
        self, row: int, position: NDArray[np.int64], tokens: NDArray[np.int64]
    ) -> NDArray[np.uint64] | None:
        if not len(position):
            return np.empty(0, np.uint64)
        if position[0] == 0:
            self._prefixes[row] = ContentPrefix(self._key)
        prefix = self._prefixes[row]
        if not np.array_equal(position, prefix.tokens + np.arange(len(position))):
            return None
        try:
            return prefix.extend(tokens)
        except InputError:  # a number that stands for no token
            return None
