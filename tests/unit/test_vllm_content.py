from __future__ import annotations

import os
import random
from dataclasses import dataclass
from hashlib import blake2b
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from moescope.core.errors import SettingsError
from moescope.producers.vllm_plugin.content import EngineContent, secret_of
from moescope.producers.vllm_plugin.requests import EngineRequest
from moescope.producers.vllm_plugin.step import Step

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.producers.vllm_plugin.content import ContentKeys

SECRET = b"0123456789abcdef"

Keys = list[int | None]


def key_of(tokens: list[int]) -> int:
    """Key of a text's last token, as its definition says."""
    text = b"".join(token.to_bytes(4, "little") for token in tokens)
    digest = blake2b(text, key=SECRET, digest_size=8, person=b"moescope content").digest()
    return int.from_bytes(digest, "little")


def keys_of(tokens: list[int], first: int = 0) -> Keys:
    """Keys of all tokens of a text from one of them on."""
    return [key_of(tokens[: end + 1]) for end in range(first, len(tokens))]


def new_request(prompt: list[int] | None, embeds: object = None) -> object:
    """The shape of vLLM's `NewRequestData`."""
    return SimpleNamespace(prompt_token_ids=prompt, prompt_embeds=embeds)


@dataclass
class Rows:
    """What one request is given in a pass.

    Attributes:
        drafts: How many of the last tokens are drafts.
        accepted: How many of those are kept.
    """

    name: str
    first: int
    tokens: list[int]
    drafts: int = 0
    accepted: int = 0


class Engine:
    """Requests, and the keys of what they are given."""

    def __init__(self) -> None:
        self.content = EngineContent(SECRET)
        self.requests: dict[str, EngineRequest] = {}
        self.passes = 0

    def begin(self, name: str, prompt: list[int] | None, embeds: object = None) -> None:
        """A request that is scheduled for the first time."""
        new = new_request(prompt, embeds)
        self.requests[name] = EngineRequest(
            name=name,
            task=name,
            cached_tokens=0,
            scene="",
            is_own_task=True,
            prompt_tokens=len(prompt or ()),
            content=self.content.begin(new),
        )

    def joined(self, *rows: Rows) -> ContentKeys | None:
        """A pass, seen."""
        self.passes += 1
        flat = [(one.first + at, token) for one in rows for at, token in enumerate(one.tokens)]
        step = Step(
            [one.name for one in rows],
            np.array([len(one.tokens) for one in rows]),
            np.array([one.first for one in rows]),
            np.array([one.drafts for one in rows]),
            len(flat),
        )
        return self.content.keys(
            self.passes,
            step,
            [self.requests[one.name] for one in rows],
            positions=np.array([position for position, _ in flat]),
            token_ids=np.array([token for _, token in flat], np.int32),
            accepted=np.array([one.accepted for one in rows]),
        )

    def given(self, *rows: Rows) -> list[Keys]:
        """Keys of a pass's rows by request; None where a row has none."""
        found = self.joined(*rows)
        result: list[Keys] = []
        at = 0
        for number, one in enumerate(rows):
            end = at + len(one.tokens)
            has_keys = found is not None and (found.has_keys is None or found.has_keys[number])
            keys: Keys = [None] * len(one.tokens)
            if found is not None and has_keys:
                keys = found.keys[at:end].tolist()
            result.append(keys)
            at = end
        return result

    def unseen(self) -> None:
        """A pass, not seen."""
        self.passes += 1
        self.content.miss(self.passes)


@pytest.fixture
def engine() -> Engine:
    """One without requests."""
    return Engine()


def test_chunks_and_steps_have_the_keys_of_the_whole_text(engine: Engine) -> None:
    """However a text is cut into passes, and whoever else is in them."""
    long, short = [5, 9, 2047, 0, 11, 70_000], [7, 7]
    engine.begin("long", long[:5])
    engine.begin("short", short[:1])
    assert engine.given(Rows("long", 0, long[:3])) == [keys_of(long)[:3]]
    found = engine.given(Rows("short", 0, short[:1]), Rows("long", 3, long[3:5]))
    assert found == [keys_of(short)[:1], keys_of(long)[3:5]]
    assert engine.given(Rows("long", 5, long[5:])) == [keys_of(long)[5:]]
    found = engine.given(Rows("short", 1, short[1:]), Rows("long", 6, [8]))
    assert found == [keys_of(short)[1:], keys_of([*long, 8])[6:]]


def test_a_prompt_in_chunks_of_one_is_not_taken_for_an_answer(engine: Engine) -> None:
    """What is computed again tells: it is hashed from what was kept."""
    text = [*range(11, 20)]
    engine.begin("slow", text[:3])
    for position, token in enumerate(text[:7]):
        assert engine.given(Rows("slow", position, [token])) == [[key_of(text[: position + 1])]]
    assert engine.given(Rows("slow", 5, text[5:8])) == [keys_of(text, 5)[:3]]


def test_a_cached_prefix_is_part_of_the_text(engine: Engine) -> None:
    """What was never computed is known from the prompt."""
    prompt = [*range(40, 60)]
    engine.begin("cached", prompt)
    assert engine.given(Rows("cached", 16, prompt[16:])) == [keys_of(prompt, 16)]


def test_what_is_computed_again_has_the_same_keys(engine: Engine) -> None:
    """After preemption: from the start, and from what of it is still in the cache."""
    text = [*range(3, 15)]
    engine.begin("again", text[:8])
    engine.given(Rows("again", 0, text[:8]))
    for position in (8, 9, 10):
        engine.given(Rows("again", position, [text[position]]))
    assert engine.given(Rows("again", 0, text[:11])) == [keys_of(text)[:11]]
    assert engine.given(Rows("again", 4, text[4:9])) == [keys_of(text)[4:9]]
    assert engine.given(Rows("again", 9, text[9:12])) == [keys_of(text)[9:]]


def test_a_request_goes_on_behind_what_another_ones_blocks_hold(engine: Engine) -> None:
    """Preempted amid its prompt, resumed further on: the prompt tells what lies between."""
    prompt = [*range(100, 120)]
    engine.begin("ahead", prompt)
    engine.given(Rows("ahead", 0, prompt[:4]))
    assert engine.given(Rows("ahead", 16, prompt[16:])) == [keys_of(prompt, 16)]


def test_rejected_drafts_do_not_enter_the_text(engine: Engine) -> None:
    """Each draft has the key of what it was computed from; what follows, that of the request."""
    text = [1, 2, 3, 4, 5, 6]
    engine.begin("drafts", text[:2])
    engine.given(Rows("drafts", 0, text[:2]))
    found = engine.given(Rows("drafts", 2, [3, 4, 90, 91], drafts=3, accepted=1))
    assert found == [keys_of([1, 2, 3, 4, 90, 91], 2)]
    found = engine.given(Rows("drafts", 4, [5, 92], drafts=1, accepted=0))
    assert found == [keys_of([1, 2, 3, 4, 5, 92], 4)]
    assert engine.given(Rows("drafts", 5, [6])) == [keys_of(text)[5:]]
    assert engine.given(Rows("drafts", 6, [93], drafts=1)) == [[key_of([*text, 93])]]
    assert engine.given(Rows("drafts", 7, [8])) == [[None]]


def test_embeddings_have_no_keys_and_cost_nobody_else_his(engine: Engine) -> None:
    """Nobody has the tokens of a prompt that is given as vectors, or partly so."""
    engine.begin("vectors", None, embeds=np.ones((3, 2)))
    engine.begin("mixed", [1, 2, 3], embeds=np.ones((3, 2)))
    engine.begin("text", [1, 2, 3])
    found = engine.given(Rows("vectors", 0, [0, 0, 0]), Rows("text", 0, [1, 2, 3]))
    assert found == [[None] * 3, keys_of([1, 2, 3])]
    assert engine.joined(Rows("mixed", 0, [1, 2, 3]), Rows("vectors", 3, [4])) is None


def test_behind_a_pass_that_nobody_saw_there_are_no_keys(engine: Engine) -> None:
    """What was generated in it is not known; prompts are, and what is computed once more."""
    text, prompt = [*range(1, 9)], [*range(50, 60)]
    engine.begin("decoding", text[:4])
    engine.begin("asking", prompt)
    engine.given(Rows("decoding", 0, text[:4]), Rows("asking", 0, prompt[:3]))
    engine.given(Rows("decoding", 4, text[4:5]), Rows("asking", 3, prompt[3:4]))
    engine.unseen()
    found = engine.given(Rows("decoding", 6, text[6:7]), Rows("asking", 5, prompt[5:8]))
    assert found == [[None], keys_of(prompt)[5:8]]
    assert engine.given(Rows("decoding", 7, text[7:8])) == [[None]]
    assert engine.given(Rows("decoding", 0, text[:8])) == [keys_of(text)]


def test_a_token_that_only_an_unseen_pass_replaced_is_not_trusted(engine: Engine) -> None:
    """Positions alone would fit: the request went back and on again while nobody looked."""
    engine.begin("replaced", [1, 2])
    engine.given(Rows("replaced", 0, [1, 2]))
    engine.given(Rows("replaced", 2, [90]))
    engine.unseen()  # position 2 once more, with another token
    assert engine.given(Rows("replaced", 3, [4])) == [[None]]


def test_a_pass_that_fails_before_it_is_counted_was_not_seen(engine: Engine) -> None:
    """It may have put a token where the request's next one is; the pass after it is seen again."""
    text = [1, 2, 90]
    for name in ("on", "again"):
        engine.begin(name, text[:2])
    engine.given(Rows("on", 0, text[:2]), Rows("again", 0, text[:2]))
    engine.given(Rows("on", 2, text[2:]), Rows("again", 2, text[2:]))
    engine.content.miss(engine.passes)
    assert engine.given(Rows("on", 3, [4]), Rows("again", 0, text)) == [[None], keys_of(text)]
    found = engine.given(Rows("on", 4, [5]), Rows("again", 3, [4]))
    assert found == [[None], keys_of([*text, 4], 3)]


@pytest.mark.parametrize("number", [-1, 2**32, 2**40])
def test_a_prompt_with_a_number_that_is_no_token_has_no_keys(engine: Engine, number: int) -> None:
    """In four bytes it would pass for another token, and the text for another text."""
    prompt = [1, number]
    engine.begin("odd", prompt)
    assert engine.joined(Rows("odd", 0, [1, 0])) is None
    engine.begin("session", [1])
    content = engine.requests["session"].content
    assert engine.content.go_on(content, new_request(prompt)) is None


def test_placeholders_are_no_tokens(engine: Engine) -> None:
    """A number below zero stands for what is not known yet: neither it nor the next has a key."""
    engine.begin("waiting", [1, 2])
    engine.given(Rows("waiting", 0, [1, 2]))
    assert engine.joined(Rows("waiting", 2, [-1])) is None
    assert engine.joined(Rows("waiting", 3, [4])) is None


def test_a_token_that_only_a_placeholder_replaced_is_not_trusted(engine: Engine) -> None:
    """A pass with one is as good as unseen: what it put in the place of known tokens is unknown."""
    engine.begin("replaced", [1, 2])
    engine.given(Rows("replaced", 0, [1, 2]))
    engine.given(Rows("replaced", 2, [90]))
    assert engine.joined(Rows("replaced", 2, [-1])) is None
    assert engine.given(Rows("replaced", 3, [4])) == [[None]]
    assert engine.given(Rows("replaced", 0, [1, 2, 3, 4])) == [keys_of([1, 2, 3, 4])]


def test_tokens_behind_those_that_were_computed_again_are_forgotten(engine: Engine) -> None:
    """They belong to the text as it was: nobody saw what now lies between."""
    text = [*range(1, 11)]
    engine.begin("rewound", text[:2])
    engine.given(Rows("rewound", 0, text[:2]))
    for position in range(2, 10):
        engine.given(Rows("rewound", position, [text[position]]))
    other = [*text[:4], 90, 91]
    assert engine.given(Rows("rewound", 4, other[4:])) == [keys_of(other, 4)]
    assert engine.given(Rows("rewound", 8, [92])) == [[None]]
    assert engine.given(Rows("rewound", 6, [93])) == [[key_of([*other, 93])]]


def test_the_rest_of_a_prompt_is_known_behind_a_chunk_of_it(engine: Engine) -> None:
    """Rows of a later chunk that are not the prompt's have no keys, however the first ones fit."""
    prompt = [1, 2, 3, 4, 5, 6]
    engine.begin("chunked", prompt)
    engine.given(Rows("chunked", 0, prompt[:3]))
    assert engine.given(Rows("chunked", 3, [4, 90])) == [[None, None]]
    assert engine.given(Rows("chunked", 5, prompt[5:])) == [keys_of(prompt, 5)]


def test_the_largest_token_is_one(engine: Engine) -> None:
    """Four bytes hold it: a prompt with it has the keys of its text."""
    prompt = [2**32 - 1, 5]
    engine.begin("largest", prompt)
    assert engine.given(Rows("largest", 1, prompt[1:])) == [keys_of(prompt, 1)]


def test_rows_that_contradict_the_prompt_have_no_keys(engine: Engine) -> None:
    """Then these are not the tokens of this request, or the prompt is not what was computed."""
    engine.begin("other", [1, 2, 3, 4])
    assert engine.joined(Rows("other", 0, [1, 7])) is None
    assert engine.joined(Rows("other", 2, [3, 9, 5])) is None
    assert engine.given(Rows("other", 2, [3, 4])) == [keys_of([1, 2, 3, 4], 2)]


def test_a_session_goes_on_with_what_it_was_sent(engine: Engine) -> None:
    """Its new prompt holds what was generated, as far as that was kept."""
    engine.begin("session", [1, 2])
    engine.given(Rows("session", 0, [1, 2]))
    engine.given(Rows("session", 2, [3]))
    engine.given(Rows("session", 3, [90]))  # computed, and then dropped
    request = engine.requests["session"]
    whole = [1, 2, 3, 4, 5]
    request.content = engine.content.go_on(request.content, new_request(whole))
    assert engine.given(Rows("session", 3, [4, 5])) == [keys_of(whole, 3)]
    assert engine.given(Rows("session", 5, [6])) == [keys_of([*whole, 6], 5)]
    engine.unseen()
    assert engine.given(Rows("session", 4, [5])) == [keys_of(whole, 4)]


class Traffic:
    """Three requests that are cut into passes at random, preempted, and found in the cache.

    Attributes:
        texts: What each consists of; what it computes again may come out differently.
    """

    def __init__(self, seed: int, engine: Engine) -> None:
        self._chosen = random.Random(seed)
        self._prompts = {name: self._chosen.randint(1, 12) for name in "abc"}
        self.texts = {name: self._tokens(70) for name in "abc"}
        self._computed = {name: self._chosen.randrange(self._prompts[name]) for name in "abc"}
        for name, text in self.texts.items():
            engine.begin(name, text[: self._prompts[name]])

    def is_seen(self) -> bool:
        """Whether the next pass is."""
        return self._chosen.random() > 0.05

    def rows(self) -> list[Rows]:
        """The next pass: some of the requests."""
        names = self._chosen.sample("abc", self._chosen.randint(1, 3))
        return [self._rows_of(name) for name in names if self._computed[name] < 60]

    def _tokens(self, many: int) -> list[int]:
        return [self._chosen.randrange(9) for _ in range(many)]

    def _rows_of(self, name: str) -> Rows:
        chosen, text, prompt = self._chosen, self.texts[name], self._prompts[name]
        first = self._begin_of(name)
        behind = max(self._computed[name], prompt) + 1
        end = first + min(chosen.randint(1, 6), behind - first)
        drafts = chosen.randint(0, 3) if end == behind else 0
        accepted = chosen.randint(0, drafts)
        self._computed[name] = end + accepted
        tokens = text[first : end + accepted] + self._tokens(drafts - accepted)
        return Rows(name, first, tokens, drafts, accepted)

    def _begin_of(self, name: str) -> int:
        """Where a request goes on."""
        chosen, first, prompt = self._chosen, self._computed[name], self._prompts[name]
        if chosen.random() < 0.1:  # preempted; some of it is still in the cache
            first = chosen.randint(0, first)
            at = max(first, prompt)
            self.texts[name][at:] = self._tokens(70 - at)
        if first < prompt and chosen.random() < 0.2:  # in another request's blocks
            first = chosen.randrange(first, prompt)
        return first


@pytest.mark.parametrize("seed", range(40))
def test_a_key_is_right_or_not_there(seed: int, engine: Engine) -> None:
    """Chunks, drafts, preemption, cache hits and unseen passes in any order."""
    traffic = Traffic(seed, engine)
    with_keys = 0
    while rows := traffic.rows():
        if not traffic.is_seen():
            engine.unseen()
            continue
        for one, found in zip(rows, engine.given(*rows), strict=True):
            if None not in found:
                text = traffic.texts[one.name][: one.first] + one.tokens
                assert found == keys_of(text, one.first)
                with_keys += 1
    assert with_keys > 5


def secret_file(folder: Path, content: bytes, mode: int = 0o600) -> str:
    """A file with a secret."""
    file = folder / "secret"
    file.write_bytes(content)
    file.chmod(mode)
    return str(file)


def test_a_secret_is_what_its_file_holds(tmp_path: Path) -> None:
    """The line end that an editor leaves is no part of it."""
    assert secret_of(secret_file(tmp_path, SECRET + b"\n")) == SECRET


@pytest.mark.parametrize(
    ("content", "mode"), [(b"guessable", 0o600), (b"x" * 65, 0o600), (SECRET, 0o640)]
)
def test_a_secret_that_protects_nothing_is_refused(
    tmp_path: Path, content: bytes, mode: int
) -> None:
    """Guessable, cut off unseen, or readable by others: told, and never in the message."""
    with pytest.raises(SettingsError) as caught:
        secret_of(secret_file(tmp_path, content, mode))
    assert caught.value.next_step
    assert content.decode() not in str(caught.value)


@pytest.mark.parametrize("size", [65, 67, 5_000])
def test_a_secret_that_is_too_long_is_not_given_a_wrong_length(size: int, tmp_path: Path) -> None:
    """Of a long file only the beginning is read: its length is not known, the limit is."""
    file = secret_file(tmp_path, b"x" * size)
    with pytest.raises(SettingsError) as caught:
        secret_of(file)
    assert caught.value.what == (
        f"A secret for content keys has 16 to 64 bytes: that in {file} has more than 64."
    )


def test_a_secret_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Its path is."""
    with pytest.raises(SettingsError, match=os.fspath(tmp_path)):
        secret_of(str(tmp_path / "none"))
