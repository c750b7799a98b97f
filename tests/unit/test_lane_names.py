from __future__ import annotations

from hashlib import blake2b

from moescope.core.vocabulary import MAX_SCENES, OTHER_SCENE, UNKNOWN_SCENE
from moescope.processors.lane_names import SceneNumbers, TaskNumbers


def test_scenes_beyond_the_most_are_one_scene() -> None:
    """An engine that makes scenes up cannot make a partition's memory grow."""
    scenes = SceneNumbers()
    many = [f"s{index}" for index in range(MAX_SCENES + 5)]
    numbers = scenes.numbers_of(many).tolist()
    named = [scenes.name_of(number) for number in numbers]
    assert named == many[:MAX_SCENES] + [OTHER_SCENE] * 5
    assert scenes.numbers_of(many).tolist() == numbers
    assert len(scenes.state()) == MAX_SCENES + 1


def test_a_scene_without_a_name_is_the_unknown_one() -> None:
    """Whoever tells no scene is in one with those that say it is unknown."""
    scenes = SceneNumbers()
    chat, nothing, unknown = scenes.numbers_of(["chat", "", UNKNOWN_SCENE]).tolist()
    assert nothing == unknown != chat
    assert scenes.name_of(nothing) == UNKNOWN_SCENE


def test_a_saved_state_gives_scenes_their_numbers_back() -> None:
    """Counts that were saved by number stay those of their scene, whatever was there before."""
    saved = SceneNumbers()
    saved.numbers_of(["b", "a", "c"])
    restored = SceneNumbers()
    restored.numbers_of(["a", "z"])
    restored.restore(saved.state())
    assert restored.numbers_of(["a", "b", "c", "d"]).tolist() == [1, 0, 2, 3]


def test_tasks_have_the_same_number_after_any_restart() -> None:
    """Rows that are replayed belong to the task windows that were saved."""
    name = "answer \ud800"  # half of a surrogate pair, as an engine may send it
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    tasks = TaskNumbers()
    (number,) = tasks.numbers_of([name]).tolist()
    assert number == int.from_bytes(digest, "little", signed=True)
    assert tasks.names_of([number]) == [name]


def test_only_tasks_that_are_over_are_forgotten() -> None:
    """Names of tasks whose rows go on are needed when their windows are handed out."""
    tasks = TaskNumbers()
    kept, _, again = tasks.numbers_of(["kept", "over", "kept"]).tolist()
    assert kept == again
    tasks.keep({kept})
    assert len(tasks) == 1
    assert tasks.names_of([kept]) == ["kept"]
    tasks.numbers_of(["over", "kept"])
    assert len(tasks) == 2
