from __future__ import annotations

import hashlib
import os
import re
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.rings import ids_of, small_recorder

from moescope.core.errors import InputError, SettingsError
from moescope.producers.token_ids import KeyedHash

if TYPE_CHECKING:
    from pathlib import Path

KEY = b"0123456789abcdef0123456789abcdef"


def expected(token: int, key: bytes = KEY) -> int:
    """The documented hash of one id."""
    digest = hashlib.blake2b(
        token.to_bytes(8, "little"), digest_size=8, key=key, person=b"moescope tokens"
    )
    return int.from_bytes(digest.digest(), "little")


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A file with the key that only its owner can read."""
    path = tmp_path / "key"
    path.write_bytes(KEY + b"\n")
    path.chmod(0o600)
    return path


def test_hashes_are_keyed_blake2_of_each_id() -> None:
    """What is stored is documented, so that whoever has the key can look tokens up."""
    hash_ids = KeyedHash(KEY)
    ids = np.array([[7, 0, 7], [50_000, 1, 2**31 - 1]])
    np.testing.assert_array_equal(
        hash_ids(ids), np.array([[expected(token) for token in row] for row in ids.tolist()])
    )
    assert hash_ids(ids).dtype == np.uint64
    assert hash_ids([]).shape == (0,)
    assert hash_ids(ids)[0, 0] != KeyedHash(KEY[::-1])([7])[0]


def test_a_table_of_the_vocabulary_changes_no_hash() -> None:
    """Hashed at the start or when first seen, in any order: the same."""
    at_once, later = KeyedHash(KEY, vocabulary=100), KeyedHash(KEY)
    for ids in ([3], [90, 3], np.arange(120)):
        np.testing.assert_array_equal(at_once(ids), later(ids))
    assert later([99]).tolist() == [expected(99)]


def test_threads_get_the_same_hashes() -> None:
    """The table grows while others look up in it."""
    hash_ids = KeyedHash(KEY)
    wrong: list[int] = []

    def work(start: int) -> None:
        wrong.extend(
            token for token in range(start, 600, 4) if int(hash_ids([token])[0]) != expected(token)
        )

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_key_file_is_a_key(key_file: Path) -> None:
    """A line end behind the key is no part of it, and a path may be text."""
    for key in (key_file, str(key_file)):
        assert KeyedHash(key)([5]).tolist() == [expected(5)]


def test_a_key_that_others_may_read_is_refused(key_file: Path) -> None:
    """Whoever has the key can undo the hashes: the file's permissions are looked at."""
    for mode in (0o640, 0o604, 0o666):
        key_file.chmod(mode)
        with pytest.raises(SettingsError, match="Others may") as caught:
            KeyedHash(key_file)
        assert KEY.decode() not in str(caught.value)


def test_what_is_no_key_is_refused(tmp_path: Path, key_file: Path) -> None:
    """Too short, too long, missing, no file: an error at the start that says what to do."""
    key_file.write_bytes(b"short\n")
    for key in (key_file, tmp_path / "none", tmp_path, os.devnull, b"short", b"x" * 65):
        with pytest.raises(SettingsError):
            KeyedHash(key)


def test_the_length_of_a_key_is_told_as_far_as_it_is_known(key_file: Path) -> None:
    """Of a file no more is read than shows that it is too long: a number would be wrong."""
    key_file.write_bytes(b"x" * 65)
    with pytest.raises(SettingsError, match=r"has more than 64 bytes in .*, not 16 to 64\."):
        KeyedHash(key_file)
    key_file.write_bytes(b"x" * 1_000)
    with pytest.raises(SettingsError, match="has more than 64 bytes in"):
        KeyedHash(key_file)
    key_file.write_bytes(b"short\n")
    with pytest.raises(SettingsError, match="has 5 bytes in"):
        KeyedHash(key_file)
    with pytest.raises(SettingsError, match="has 1000 bytes, not"):
        KeyedHash(b"x" * 1_000)


@pytest.mark.parametrize("ids", [[-1], [0.5], ["a"]])
def test_what_is_no_token_id_is_refused(ids: list[object]) -> None:
    """A wrong array is told, not hashed."""
    with pytest.raises(InputError):
        KeyedHash(KEY)(np.array(ids))


def test_hashes_fit_the_recorder(tmp_path: Path) -> None:
    """64 bits without a sign: none is refused or changed on its way."""
    hashes = KeyedHash(KEY)(np.arange(64))
    with small_recorder(tmp_path, token_id_kind="keyed_hash") as recorder:
        recorder.record("a", np.arange(64), ids_of(range(64)), "prefill", token_ids=hashes)
        assert recorder.counters().recorded_rows == 64


def test_the_page_about_privacy_works_as_written(
    tmp_path: Path, repository_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program makes a key that is accepted, and hashes with it."""
    page = (repository_root / "docs/explanation/privacy.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(program, names)  # noqa: S102 - our own page
    key = (tmp_path / "token-ids.key").read_bytes()
    hash_ids = names["hash_ids"]
    assert isinstance(hash_ids, KeyedHash)
    assert hash_ids([17]).tolist() == [expected(17, key.rstrip(b"\r\n"))]
