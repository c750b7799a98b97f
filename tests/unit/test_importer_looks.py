"""What an import says first: of files that are not there or of another format, then of options."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.tensor_files import write_tensors

from moescope.producers.importers import FORMATS, ImportFormatError, import_files

if TYPE_CHECKING:
    from pathlib import Path

ROW = {"request": "r", "position": 0, "experts": [[1, 2]]}
VLLM = {"id": "a", "choices": [{"routed_experts": [[[1, 2]]]}]}
SGLANG = {"meta_info": {"id": "a", "routed_experts": "AAAA"}}
TRACE = {
    "step": 3, "layer": 1, "rank": 0, "num_tokens": 1, "topk": 2, "top_indices": [[0, 1]],
}  # fmt: skip
COUNTS = {"iter": 1, "layer": 3, "tpe": [[5, 3]]}
MISSING = {
    "jsonl": (ROW, ["experts"]),
    "vllm-routes": (VLLM, ["experts"]),
    "sglang-meta": (SGLANG, ["hidden_layers", "top_k", "experts"]),
    "megatron-trace": (TRACE, ["experts"]),
    "megatron-counts": (COUNTS, ["experts", "top_k"]),
}
"""A line of each format that has to be told something, and what."""


def written(folder: Path, line: object, name: str = "rank0.jsonl") -> Path:
    """A file of one line, under a bad one: the first lines of a good file may be bad."""
    path = folder / name
    path.write_text("{\n" + json.dumps(line) + "\n", encoding="utf-8")
    return path


def refusal(form: str, paths: list[Path], log: Path, **options: str) -> ImportFormatError:
    """Why nothing was imported."""
    with pytest.raises(ImportFormatError) as caught:
        import_files(form, paths, log, options)
    assert not log.exists()
    return caught.value


def test_formats_with_options_that_have_to_be_given_look_at_files() -> None:
    """Else one would be asked for options of a file that cannot be imported anyway."""
    for name, form in FORMATS.items():
        assert (form.look is not None) is (name in MISSING)
        asked = [option.name for option in form.options if option.example]
        assert sorted(asked) == sorted(MISSING.get(name, ({}, []))[1])


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_not_there_is_told_before_anything_else(form: str, tmp_path: Path) -> None:
    """Be it the second one, and be options missing, too: nothing of the first is imported."""
    path = written(tmp_path, MISSING.get(form, (ROW, []))[0])
    for paths in ([tmp_path / "none"], [path, tmp_path / "none"]):
        for options in ({}, {"no_such": "option"}):
            error = refusal(form, paths, tmp_path / "log", **options)
            assert error.what == f"The file {tmp_path / 'none'} cannot be read."


@pytest.mark.parametrize("form", MISSING)
def test_all_options_that_are_missing_are_named_at_once(form: str, tmp_path: Path) -> None:
    """With what each means and an example, so that the next try is the last."""
    line, names = MISSING[form]
    error = refusal(form, [written(tmp_path, line)], tmp_path / "log")
    told = error.what.removesuffix(".").partition("is not known: ")[2]
    assert sorted(told.split(", ")) == sorted(names)
    by_name = {option.name: option for option in FORMATS[form].options}
    for name in names:
        assert f"{name}: {by_name[name].help}" in error.why
        assert f"-o {name}={by_name[name].example}" in error.next_step
        by_name[name].parse(by_name[name].example)


def test_what_was_given_is_not_asked_for_again(tmp_path: Path) -> None:
    """Two of three, then the third."""
    path = written(tmp_path, SGLANG)
    error = refusal("sglang-meta", [path], tmp_path / "log", top_k="2", experts="8")
    assert error.what.endswith("is not known: hidden_layers.")
    assert error.next_step == "Give it, for example -o hidden_layers=48"


@pytest.mark.parametrize("form", MISSING)
@pytest.mark.parametrize("other", [*MISSING, "tensors", "text", "array", "empty", "zeros"])
def test_a_file_of_another_format_is_not_asked_options_for(
    form: str, other: str, tmp_path: Path
) -> None:
    """Whoever took the wrong file or format has no use for a number of experts."""
    path = tmp_path / "rank0.jsonl"
    if other in MISSING:
        written(tmp_path, MISSING[other][0])
    elif other == "tensors":
        write_tensors(path, {"logical_count": np.ones((1, 2, 4), np.int64)})
    else:
        text = {"text": "request,position\nr,0\n" * 999, "array": "[1, null, [2]]", "empty": ""}
        path.write_text(text.get(other, "\0" * 9_000), encoding="utf-8")
    error = refusal(form, [path], tmp_path / "log")
    if form == other:
        assert "is not known" in error.what
        return
    assert error.what == f"{path} is not of the format {form}."
    assert error.why
    assert len(error.why) < 400
    assert "moescope import list" in error.next_step


def test_lines_are_looked_at_as_the_options_say(tmp_path: Path) -> None:
    """A field map makes a file one of the format; a wrong one is told before experts are."""
    path = written(tmp_path, {"top": [[1, 2]]})
    error = refusal("jsonl", [path], tmp_path / "log")
    assert "field 'experts' is missing" not in error.why  # the first line is no JSON
    assert "line 1: no JSON" in error.why
    mapped = refusal("jsonl", [path], tmp_path / "log", **{"map.experts": "top"})
    assert mapped.what.endswith("is not known: experts.")


def test_pipes_are_refused(tmp_path: Path) -> None:
    """What can be read once only would be found empty the second time, or wait for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    error = refusal("jsonl", [pipe], tmp_path / "log", experts="4")
    assert error.what == f"{pipe} is no regular file."


def test_models_without_a_known_top_k_are_named_together(tmp_path: Path) -> None:
    """One message for all models of a file of counts."""
    counts: Any = {"expert_counts": {"web": {"0": [4, 2, 2]}}}
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"one": counts, "two": counts}), encoding="utf-8")
    with pytest.raises(ImportFormatError) as caught:
        import_files("counts-json", [path], tmp_path / "log", {})
    assert caught.value.next_step == (
        "Give the experts per token of each model: -o top_k=one=NUMBER,two=NUMBER"
    )
    import_files("counts-json", [path], tmp_path / "log", {"top_k": "one=2,two=1"})
