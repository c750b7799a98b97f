"""The two Python programs of the guide for vLLM: what needs no server runs as written."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.rings import logged

from moescope.core.vocabulary import RowFlag
from moescope.producers.agent import Agent
from moescope.producers.content_keys import content_keys

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = REPOSITORY / "docs/how-to/watch-vllm.md"
WEIGHTS = REPOSITORY / "examples/tiny_moe/weights"
SECRET = base64.b64encode(bytes(range(32)))
"""As the page's command makes one."""

ANSWER = {
    "id": "cmpl-try-1",
    "choices": [{"prompt_token_ids": [11, 7, 23, 5], "token_ids": [9, 31, 4]}],
}
"""What the program reads of vLLM's answer."""


def programs() -> list[str]:
    """The programs of the page, in its order."""
    return re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home with the secret's file, from which a program runs as in a checkout."""
    key = tmp_path / "moescope-content.key"
    key.write_bytes(SECRET + b"\n")
    key.chmod(0o600)
    (tmp_path / "examples/tiny_moe").mkdir(parents=True)
    (tmp_path / "examples/tiny_moe/weights").symlink_to(WEIGHTS)
    (tmp_path / "answer.json").write_text(json.dumps(ANSWER), encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(program: str) -> dict[str, Any]:
    """Run a program in the current folder, and return its names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, "page", "exec"), names)  # noqa: S102 - a page of this repository
    return names


@pytest.mark.usefixtures("home")
def test_the_secret_is_read_as_the_page_says() -> None:
    """Whoever pastes it has the plugin's secret: the file's text without its line end."""
    reading, _ = programs()
    assert run(reading)["secret"] == SECRET


def test_an_answer_is_replayed_as_the_page_says(home: Path) -> None:
    """Whoever pastes it has each token of an answer recorded, by the keys that the plugin uses."""
    _, replaying = programs()
    run(replaying)
    with Agent(home / "replayed/ring", home / "log") as agent:
        agent.drain()
    (node,) = (path.name for path in (home / "log").iterdir() if path.is_dir())
    (choice,) = ANSWER["choices"]
    assert isinstance(choice, dict)
    tokens = choice["prompt_token_ids"] + choice["token_ids"]
    found: dict[int, int] = {}
    for batch, *_ in logged(home / "log", node):
        if batch.tokens is None:
            continue
        assert batch.requests.ids == ("cmpl-try-1",)
        assert batch.tokens.content_key is not None
        counts = (batch.tokens.flags & RowFlag.CONTEXT) == 0
        positions = batch.tokens.position[counts].tolist()
        found |= dict(zip(positions, batch.tokens.content_key[counts].tolist(), strict=True))
    assert found == dict(enumerate(content_keys(tokens, key=SECRET).tolist()))
