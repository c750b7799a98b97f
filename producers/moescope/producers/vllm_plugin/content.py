"""Content keys of the rows of passes, from the token ids that the model was given.

What a row was computed from is the token ids that the engine put before the model: they come to the
host with the row, be it an engine whose host learns only later what was sampled. What was computed
elsewhere (a cached prefix) or not seen is known from the prompt. Nothing else is: rows behind a
token that nobody saw have no key, for a key of the rest would be another text's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from moescope.producers.content_keys import LARGEST_TOKEN, ContentPrefix, checked_secret
from moescope.producers.token_ids import read_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from moescope.producers.vllm_plugin.requests import EngineRequest
    from moescope.producers.vllm_plugin.step import Step

_TOKEN_BYTES: Final = 4
_TOKENS: Final = np.dtype("<u4")
_KEYS: Final = np.dtype("<u8")
_NO_KEY: Final = bytes(_KEYS.itemsize)


class ContentKeys(NamedTuple):
    """Keys of one pass's rows.

    Attributes:
        keys: uint64 [T].
        has_keys: Booleans [R], which requests' rows have any; None where all have.
    """

    keys: NDArray[np.uint64]
    has_keys: NDArray[np.bool_] | None

    def of_rows(self, kept: NDArray[np.bool_]) -> ContentKeys:
        """Those of rows that are kept, booleans [T]."""
        return self._replace(keys=self.keys[kept])


class RequestContent:
    """What one request's positions were given so far: its prompt, and what was generated.

    Args:
        secret: Of the keys.
        prompt: Token ids of the prompt, 4 bytes each.

    Attributes:
        seen_in: Number of the pass whose rows were read last.
    """

    __slots__ = ("_prefix", "_prompt_bytes", "_secret", "_tokens", "seen_in")

    def __init__(self, secret: bytes, prompt: bytes) -> None:
        self._secret = secret
        self.seen_in = 0
        self.begin_with(prompt)

    def begin_with(self, prompt: bytes) -> None:
        """Forget what was generated: a session was sent more input."""
        self._tokens = bytearray(prompt)
        self._prompt_bytes = len(prompt)
        self._prefix = ContentPrefix(self._secret)

    def keep_prompt(self) -> None:
        """Forget what was generated: passes went by unseen."""
        del self._tokens[self._prompt_bytes :]

    def keys(self, first: int, tokens: bytes, own: int) -> bytes | None:
        """Keys of a pass's rows.

        Args:
            first: Position of the first of them.
            tokens: Their token ids, 4 bytes each.
            own: How many became the request's own: the others are drafts that were rejected.

        Returns:
            8 bytes for each row; None where not every token before them is known.
        """
        prefix, known = self._prefix, self._tokens
        start = first * _TOKEN_BYTES
        if len(tokens) == _TOKEN_BYTES and own and prefix.tokens == first and len(known) == start:
            known += tokens
            return prefix.append(tokens)
        if start > len(known) or not self._is_of_prompt(start, tokens):
            return None
        self._go_to(first)
        end = start + own * _TOKEN_BYTES
        known[start:end] = tokens[: end - start]
        del known[max(end, self._prompt_bytes) :]
        keys = _bytes_of_keys(self._prefix, tokens[: end - start])
        if end - start < len(tokens):
            keys += _bytes_of_keys(self._prefix.copy(), tokens[end - start :])
        return keys

    def _is_of_prompt(self, start: int, tokens: bytes) -> bool:
        """Whether the prompt has the same tokens there, as far as it goes."""
        prompt = self._tokens[start : min(start + len(tokens), self._prompt_bytes)]
        return tokens.startswith(prompt)

    def _go_to(self, first: int) -> None:
        """Have the prefix end before a position, with the known tokens."""
        if self._prefix.tokens > first:  # computed again
            self._prefix = ContentPrefix(self._secret)
        prefix = self._prefix
        if prefix.tokens < first:
            prefix.skip(self._tokens[prefix.tokens * _TOKEN_BYTES : first * _TOKEN_BYTES])


class EngineContent:
    """Content keys of an engine's rows.

    Args:
        secret: The same for all logs that are to be compared.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._unseen_before = 0

    def begin(self, new: Any) -> RequestContent | None:
        """Content of a request that is scheduled for the first time.

        Args:
            new: `NewRequestData` of the scheduler.

        Returns:
            None where it cannot be told: parts of the prompt are embeddings.
        """
        prompt = _prompt_of(new)
        return None if prompt is None else RequestContent(self._secret, prompt)

    def go_on(self, content: RequestContent | None, new: Any) -> RequestContent | None:
        """Content of a session that was sent more input; arguments and result as of `begin`."""
        prompt = _prompt_of(new)
        if content is None or prompt is None:
            return None
        content.begin_with(prompt)
        return content

    def miss(self, passes: int) -> None:
        """A pass went by unseen: what requests generated in it nobody knows.

        Args:
            passes: How many there were until now.
        """
        self._unseen_before = passes + 1

    def keys(
        self,
        number: int,
        step: Step,
        requests: Sequence[EngineRequest],
        *,
        positions: NDArray[Any],
        token_ids: NDArray[Any],
        accepted: NDArray[np.int64],
    ) -> ContentKeys | None:
        """Keys of the rows of a pass; passes come in their order.

        Args:
            number: Of the pass; numbers ascend.
            step: The pass.
            requests: Those of the step, R.
            positions: Integers [T].
            token_ids: Integers [T], as the model was given them.
            accepted: int64 [R], how many draft tokens became the request's own.

        Returns:
            None where no row has a key.
        """
        if int(token_ids.min()) < 0:  # a placeholder: some token is not known
            self.miss(number)
            return None
        tokens = token_ids.astype(_TOKENS).tobytes()
        if len(tokens) == len(requests) * _TOKEN_BYTES:
            firsts, counts = positions.tolist(), [1] * len(requests)
        else:
            firsts = positions[np.cumsum(step.counts) - step.counts].tolist()
            counts = step.counts.tolist()
        owns = (step.counts - step.drafts + accepted).tolist() if step.drafts.any() else counts
        unseen_before = self._unseen_before
        found: list[bytes | None] = []
        at = 0
        for request, first, count, own in zip(requests, firsts, counts, owns, strict=True):
            content, end = request.content, at + count * _TOKEN_BYTES
            if content is None:
                found.append(None)
            else:
                if content.seen_in < unseen_before:
                    content.keep_prompt()
                content.seen_in = number
                found.append(content.keys(first, tokens[at:end], own))
            at = end
        return _joined(found, counts)


def secret_of(file: str) -> bytes:
    """The secret in a file, which holds nothing else: a line end at its end is no part of it.

    Raises:
        SettingsError: It is too short or too long, or its file cannot be trusted or read.
    """
    return checked_secret(read_key(Path(file)), file=file)


def _joined(found: Sequence[bytes | None], counts: Sequence[int]) -> ContentKeys | None:
    has_keys = None
    if None in found:
        has_keys = np.array([keys is not None for keys in found])
        if not has_keys.any():
            return None
        found = [
            _NO_KEY * count if keys is None else keys
            for keys, count in zip(found, counts, strict=True)
        ]
    joined = b"".join(keys for keys in found if keys is not None)
    return ContentKeys(np.frombuffer(joined, _KEYS).astype(np.uint64, copy=False), has_keys)


def _bytes_of_keys(prefix: ContentPrefix, tokens: bytes) -> bytes:
    return prefix.extend(np.frombuffer(tokens, _TOKENS)).astype(_KEYS, copy=False).tobytes()


def _prompt_of(new: Any) -> bytes | None:
    """Token ids of a prompt, 4 bytes each; None where it is not made of tokens alone."""
    if new.prompt_token_ids is None or getattr(new, "prompt_embeds", None) is not None:
        return None
    prompt = np.asarray(new.prompt_token_ids, np.int64)
    if len(prompt) and not 0 <= int(prompt.min()) <= int(prompt.max()) <= LARGEST_TOKEN:
        return None
    return prompt.astype(_TOKENS).tobytes()
