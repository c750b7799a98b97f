from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.rings import small_recorder

from moescope.core.errors import InputError, SettingsError
from moescope.producers.content_keys import (
    LARGEST_TOKEN,
    ContentPrefix,
    checked_secret,
    content_keys,
    step_keys,
)
from moescope.producers.training import RoutingCallback

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import ArrayLike

SECRET = b"canaries of tests"


def plain_keys(tokens: list[int], secret: bytes) -> list[int]:
    """Every prefix hashed anew, whole."""
    return [
        int.from_bytes(
            blake2b(
                b"".join(token.to_bytes(4, "little") for token in tokens[: position + 1]),
                key=secret,
                digest_size=8,
                person=b"moescope content",
            ).digest(),
            "little",
        )
        for position in range(len(tokens))
    ]


@pytest.mark.parametrize("secret", [b"", bytes(16), bytes(range(64))])
def test_keys_are_keyed_hashes_of_whole_prefixes(secret: bytes) -> None:
    """The format is what other recorders can rely on, at the ends of the range, too."""
    tokens = np.random.default_rng(1).integers(0, LARGEST_TOKEN, 200, endpoint=True)
    tokens[[0, 3, 7]] = [LARGEST_TOKEN, 0, LARGEST_TOKEN]
    assert content_keys(tokens, key=secret).tolist() == plain_keys(tokens.tolist(), secret)


def test_a_long_secret_counts_to_its_end() -> None:
    """No byte of a secret is cut off."""
    keys = {int(content_keys([1], key=bytes(63) + bytes([last]))[0]) for last in range(3)}
    assert len(keys) == 3


@pytest.mark.parametrize("secret", [b"s", b"fifteen bytes !", b"x" * 65, "sixteen letters!"])
def test_a_secret_that_is_none_is_refused_without_being_shown(secret: bytes) -> None:
    """One rule wherever a secret is given: whoever can guess it reads what was asked."""
    for use in (checked_secret, ContentPrefix, lambda secret: content_keys([1], key=secret)):
        with pytest.raises(SettingsError, match="16 to 64 bytes") as caught:
            use(secret)
        assert caught.value.next_step
        assert str(secret) not in str(caught.value)


def test_a_trainer_refuses_a_short_secret_before_it_trains(tmp_path: Path) -> None:
    """A callback is made long before its model comes: the mistake is told where it was made."""
    with small_recorder(tmp_path) as recorder, pytest.raises(SettingsError, match="16 to 64"):
        RoutingCallback(recorder, run="run", content_key=b"short")


def test_keys_do_not_depend_on_how_a_request_is_cut() -> None:
    """Chunked prefill, one token at a time and whole prompts give one key per position."""
    tokens = np.random.default_rng(2).integers(0, 50_000, 3_000)
    prefix = ContentPrefix(SECRET)
    pieces = [prefix.extend(chunk) for chunk in np.split(tokens, [0, 1, 2, 700, 2_995])]
    assert np.array_equal(np.concatenate(pieces), content_keys(tokens, key=SECRET))
    assert prefix.tokens == len(tokens)


def test_requests_branch_off_a_common_prefix() -> None:
    """A cached prefix is read once, and its branches do not disturb each other."""
    common = ContentPrefix(SECRET)
    common.extend([1, 2, 3])
    branch = common.copy()
    assert branch.extend([4]).tolist() == content_keys([1, 2, 3, 4], key=SECRET)[3:].tolist()
    assert content_keys([5], start=common).tolist() == [content_keys([1, 2, 3, 5], key=SECRET)[3]]
    assert (common.tokens, branch.tokens) == (3, 4)


def test_tokens_that_nobody_needs_keys_of_are_read_all_the_same() -> None:
    """Behind a cached prefix, keys are those of the whole text, and its positions, too."""
    tokens = np.random.default_rng(4).integers(0, LARGEST_TOKEN, 500, endpoint=True)
    data = tokens.astype("<u4").tobytes()
    prefix = ContentPrefix(SECRET)
    keys = [prefix.extend(tokens[:3])]
    prefix.skip(b"")
    prefix.skip(bytearray(data[12:400]))
    assert prefix.tokens == 100
    keys.append(prefix.extend(tokens[100:]))
    expected = np.delete(content_keys(tokens, key=SECRET), slice(3, 100))
    assert np.array_equal(np.concatenate(keys), expected)


def test_a_decode_step_of_many_requests_is_that_of_each() -> None:
    """Requests at different positions are extended side by side."""
    draw = np.random.default_rng(3)
    requests = [draw.integers(0, 99, size) for size in (1, 5, 300)]
    prefixes = [ContentPrefix(SECRET) for _ in requests]
    for prefix, tokens in zip(prefixes, requests, strict=True):
        prefix.extend(tokens[:-1])
    step = step_keys(prefixes, [tokens[-1] for tokens in requests])
    assert step.tolist() == [content_keys(tokens, key=SECRET)[-1] for tokens in requests]
    assert [prefix.tokens for prefix in prefixes] == [1, 5, 300]
    assert step_keys([], []).tolist() == []
    with pytest.raises(InputError):
        step_keys(prefixes, [1, 2])


def test_keys_are_equal_exactly_while_prefixes_are() -> None:
    """The first other token changes this key and all later ones; another secret changes all."""
    tokens = np.arange(100)
    other = tokens.copy()
    other[40] += 1
    same = content_keys(tokens, key=SECRET) == content_keys(other, key=SECRET)
    assert same.tolist() == [True] * 40 + [False] * 60
    assert not (content_keys(tokens, key=SECRET) == content_keys(tokens, key=bytes(16))).any()
    repeated = content_keys(np.zeros(5_000, np.int64))
    assert len(set(repeated.tolist())) == 5_000


@pytest.mark.parametrize(
    "tokens", [[-1], [2**32], [[1]], [0.5], [2**63]], ids=["padding", "large", "2d", "real", "huge"]
)
def test_what_is_no_token_id_is_refused(tokens: ArrayLike) -> None:
    """A padding id of −1 would give keys that match nothing, without a word."""
    prefix = ContentPrefix()
    with pytest.raises(InputError):
        prefix.extend(tokens)
    assert prefix.tokens == 0
    assert prefix.extend([]).tolist() == []
