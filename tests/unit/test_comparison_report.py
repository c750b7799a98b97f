from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.comparison_logs import Batch, Row, write_log
from typer.testing import CliRunner

from moescope.console.app import app
from moescope.core.errors import InputError, InsufficientDataError
from moescope.core.vocabulary import IdSpace, Origin, Phase
from moescope.jobs.reports.comparison import Limits, compare, find_side
from moescope.jobs.reports.comparison.intervals import share_of
from moescope.jobs.reports.comparison.page import comparison_html
from moescope.jobs.reports.comparison.sentences import FRAMEWORK_SKEW, side_titles
from moescope.jobs.reports.comparison.terminal import opening_lines
from moescope.jobs.reports.comparison.words import layer_words

if TYPE_CHECKING:
    from pathlib import Path

SAME = ((0, 1, 2), (3, 4, 5))
OTHER = ((0, 1, 2), (3, 4, 6))


def rows(
    ids: tuple[tuple[int, ...], ...] = SAME,
    *,
    requests: int = 4,
    tokens: int = 6,
    first_key: int = 1,
) -> tuple[Row, ...]:
    """Requests of a few tokens, each with a key of its own."""
    return tuple(
        Row(f"r{request}", position, ids, key=first_key + request * tokens + position)
        for request in range(requests)
        for position in range(tokens)
    )


def half_other() -> tuple[Row, ...]:
    """The same rows, half of them with another expert in the second layer."""
    return tuple(
        replace(row, ids=OTHER) if number % 2 else row for number, row in enumerate(rows())
    )


def compared(folder: Path, a: list[Batch], b: list[Batch], **options: Any) -> Any:
    """Compare two lists of batches."""
    sides = [write_log(folder / name, batches) for name, batches in (("a", a), ("b", b))]
    return compare(*map(find_side, sides), **{"fewest_pairs": 1} | options)


def with_header(**fields: object) -> Batch:
    """A batch whose header says something special."""
    return Batch(rows(), header=tuple(fields.items()))


def test_routes_that_agree_are_said_to(tmp_path: Path) -> None:
    """Nobody has to read a table of hundreds."""
    report = compared(tmp_path, [Batch(rows())], [Batch(rows())])
    assert report["overall"]["all_layers"]["value"] == 1.0
    assert report["overall"]["largest_js_divergence"] == 0.0
    assert "Their routes are the same in every layer." in report["summary"]
    assert report["findings"] == []


@pytest.mark.parametrize(
    ("a", "b", "conditions", "titles"),
    [
        ("one/data", "two/data", (), ["one/data", "two/data"]),
        ("one/deep/data", "two/deep/data", (), ["one/deep/data", "two/deep/data"]),
        ("data", "data/data", (), ["{folder}/data", "data/data"]),
        ("one/data", "two/other", (), ["data", "other"]),
        (
            "one/data", "two/data", ("node=node-a",),
            ["one/data, node=node-a", "two/data, node=node-a"],
        ),
    ],
)  # fmt: skip
def test_sides_are_named_by_what_tells_them_apart(
    tmp_path: Path, a: str, b: str, conditions: tuple[str, ...], titles: list[str]
) -> None:
    """Data directories are often called alike: two sides of one name would be no names."""
    sides = [
        find_side(write_log(tmp_path / name, [Batch(rows(), node="node-a")]), conditions)
        for name in (a, b)
    ]
    report = compare(*sides, fewest_pairs=1)
    titles = [title.format(folder=tmp_path.name) for title in titles]
    assert side_titles(report) == titles
    assert f"in both A ({titles[0]}) and B ({titles[1]})," in report["summary"][0]


def test_half_of_the_tokens_differ_in_one_layer(tmp_path: Path) -> None:
    """The opening has the numbers that can be counted by hand."""
    report = compared(tmp_path, [Batch(rows())], [Batch(half_other())])
    text = " ".join(report["summary"])
    assert text.startswith("24 tokens of 4 requests are in both A (a) and B (b)")
    assert "50.0 % " in text
    assert "83.3 % (layer 3) to 100 % (layer 1)" in text
    assert [layer["parts_here"] for layer in report["layers"]] == [0.0, 0.5]


def test_a_token_parts_at_the_first_layer_that_differs(tmp_path: Path) -> None:
    """What differs behind it differs because its input does: the first layer is where to look."""
    both, last = ((0, 1, 7), (3, 4, 6)), OTHER
    b = tuple(
        replace(row, ids=(both, both, last, SAME)[number % 4]) for number, row in enumerate(rows())
    )
    report = compared(tmp_path, [Batch(rows())], [Batch(b)])
    assert [layer["parts_here"] for layer in report["layers"]] == [0.5, 0.25]
    assert report["differing_layers"] == [6, 6, 12]


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (Batch(rows(), experts=9), "9 experts"),
        (Batch(tuple(replace(row, ids=((0, 1), (2, 3))) for row in rows())), "top-2"),
        (with_header(id_space=IdSpace.PHYSICAL, expert_map_version=3), "map version 3"),
    ],
    ids=["experts", "top-k", "physical ids"],
)
def test_sides_of_different_shape_are_refused(tmp_path: Path, other: Batch, word: str) -> None:
    """Expert 7 of one model is not expert 7 of another; the message says what differs."""
    with pytest.raises(InputError, match="different shape") as caught:
        compared(tmp_path, [Batch(rows())], [other])
    assert word in caught.value.why


def stage(layer: int, place: int) -> Batch:
    """A pipeline stage's log of one of `half_other`'s layers."""
    own = tuple(replace(row, ids=(row.ids[place],), margin=(0.3,)) for row in half_other())
    return Batch(own, header=(("layers", np.array([layer], np.uint16)),))


@pytest.mark.parametrize(("layer", "place"), [(1, 0), (3, 1)])
def test_a_pipeline_stage_is_compared_with_a_whole_log(
    tmp_path: Path, layer: int, place: int
) -> None:
    """The numbers of the layers that both have are those of a comparison of whole logs."""
    whole = compared(tmp_path / "whole", [Batch(rows())], [Batch(half_other())])
    report = compared(tmp_path / "stage", [Batch(rows())], [stage(layer, place)])
    assert report["layers"] == [whole["layers"][place]]
    assert report["layer_indices"] == [layer]
    assert report["overall"]["all_layers"]["value"] == (0.5 if place else 1.0)


def test_layers_that_were_not_compared_are_named(tmp_path: Path) -> None:
    """Whoever reads "all layers" is told which layers nothing was said about, on either side."""
    for name, sides, longer in (
        ("b", (Batch(rows()), stage(3, 1)), "A"),
        ("a", (stage(1, 0), Batch(rows())), "B"),
    ):
        report = compared(tmp_path / name, [sides[0]], [sides[1]])
        (layer,) = report["layer_indices"]
        assert report[longer.lower()]["left_out_layers"] == [4 - layer]
        assert report[name]["left_out_layers"] == []
        told = (
            f"Compared: layer {layer}, which both have. "
            f"{longer} alone has layer {4 - layer}: nothing is said about those."
        )
        assert told in report["summary"]
        verdict = "in every compared layer." if name == "a" else "the same experts in layer 3; "
        assert verdict in report["summary"][2]
        page = comparison_html(report, "c.json")
        assert told in page
        assert f"<div>layer {4 - layer}, " in page


def test_all_layers_means_all_that_were_compared(tmp_path: Path) -> None:
    """A share over two of three layers does not pass for one over the whole model."""
    whole = Batch(
        tuple(replace(row, ids=(SAME[0], *row.ids), margin=(0.3,) * 3) for row in half_other()),
        header=(("layers", np.array([1, 3, 5], np.uint16)), ("origin", Origin.FRAMEWORK)),
    )
    for name, own, verdict, skew in (
        ("differ", rows(), "in all 2 compared layers.", "(in at least one compared layer)"),
        ("same", half_other(), "every compared layer.", "router chose in the compared layers."),
    ):
        stage_of_two = Batch(own, header=(("layers", np.array([3, 5], np.uint16)),))
        report = compared(tmp_path / name, [stage_of_two], [whole])
        assert verdict in report["summary"][2]
        assert skew in report["findings"][0]["text"]


def test_faults_of_layers_that_are_left_out_leave_no_row_out(tmp_path: Path) -> None:
    """A layer that nobody compares cannot take the tokens of the others with it."""
    zeros = tuple(replace(row, ids=((0, 0, 0), row.ids[1])) for row in half_other())
    report = compared(tmp_path, [Batch(zeros)], [stage(3, 1)])
    assert report["tokens"] == 24
    assert report["findings"] == []


def test_sides_without_a_common_layer_are_refused(tmp_path: Path) -> None:
    """Two stages of one pipeline have nothing to compare; the message shows the layers of both."""
    with pytest.raises(InputError, match="no layer in common") as caught:
        compared(tmp_path, [stage(1, 0)], [stage(3, 1)])
    assert "layers 1," in caught.value.why
    assert "layers 3," in caught.value.why
    assert caught.value.exit_code == 2


def test_layers_are_named_in_few_words() -> None:
    """Sixty left-out layers are one range, and none is lost in it."""
    for layers, words in (
        ([7], "layer 7"),
        ([1, 3], "layers 1 and 3"),
        ([4, 5], "layers 4 and 5"),
        (range(16, 76), "layers 16–75"),
        ([0, 2, 3, 4, 5, 8, 9], "layers 0, 2–5, 8 and 9"),
    ):
        assert layer_words(list(layers)) == words


def test_shapes_are_looked_at_before_keys(tmp_path: Path) -> None:
    """No other way to join is advised to somebody whose logs cannot be joined in any way."""
    keyless = Batch(rows(), with_keys=False)
    for name, a, b in (("a", keyless, Batch(rows(), experts=9)), ("b", Batch(rows()), keyless)):
        other = replace(b, header=(("layers", np.array([2, 4], np.uint16)),))
        message = "no layer in common" if name == "b" else "different shape"
        with pytest.raises(InputError, match=message) as caught:
            compared(tmp_path / name, [a], [other])
        assert "--by" not in caught.value.next_step


def test_several_models_or_shapes_within_a_side_are_refused(tmp_path: Path) -> None:
    """A shared log has to be narrowed down before it can be compared."""
    models = [Batch(rows()), with_header(model="another")]
    with pytest.raises(InputError, match="2 models: another, test-moe"):
        compared(tmp_path / "models", models, [Batch(rows())])
    shapes = [Batch(rows()), with_header(layers=np.array([5, 6], np.uint16))]
    with pytest.raises(InputError, match="Side B holds routes of different shapes"):
        compared(tmp_path / "shapes", [Batch(rows())], shapes)


@pytest.mark.parametrize(
    ("b", "options", "message"),
    [
        ([Batch(rows(first_key=1_000))], {}, "Only 0 tokens are on both sides"),
        ([Batch(rows(), with_keys=False)], {}, "none with a content key"),
        ([Batch(rows(), with_keys=False)], {}, r"RoutingCallback\(…, content_key=…\)"),
        ([Batch(rows())], {"fewest_pairs": 25}, "Only 24 tokens are on both sides"),
        (
            [Batch(tuple(replace(row, phase=Phase.DRAFT) for row in rows()))],
            {},
            "Side B has no row to compare",
        ),
        ([Batch(rows(((0, 0, 0), (0, 0, 0))))], {}, "Side B has no row to compare"),
        ([Batch(rows(first_key=500))], {"by": "request"}, "Only 0 tokens are on both sides"),
    ],
    ids=[
        "no common key",
        "no keys",
        "no keys in training",
        "few",
        "drafts",
        "zeros",
        "other content",
    ],
)
def test_too_little_is_said_to_be_too_little(
    tmp_path: Path, b: list[Batch], options: dict[str, Any], message: str
) -> None:
    """An agreement of nothing is no agreement."""
    with pytest.raises(InsufficientDataError, match=message):
        compared(tmp_path, [Batch(rows())], b, **options)


def test_pairs_by_request_with_other_tokens_are_left_out(tmp_path: Path) -> None:
    """New routes under old tokens are a fault of the recording, not of the router."""
    other = [replace(row, key=row.key + (10_000 if row.position == 5 else 0)) for row in rows()]
    report = compared(tmp_path, [Batch(rows())], [Batch(tuple(other))], by="request")
    assert (report["tokens"], report["other_content"]) == (20, 4)
    assert "Left out: 4 pairs hold other tokens." in report["summary"]


def test_ids_that_vllm_made_longer_are_told(tmp_path: Path) -> None:
    """A server's rows and a probe's never meet by request, and nothing in the logs says why."""
    served = [Batch(tuple(replace(row, request=f"cmpl-{row.request}") for row in rows()))]
    with pytest.raises(InsufficientDataError) as caught:
        compared(tmp_path, served, [Batch(rows())], by="request")
    assert "cmpl-" in str(caught.value.next_step)


def test_one_log_holds_both_sides(tmp_path: Path) -> None:
    """Conditions on headers, labels, phases and scenes tell the sides apart."""
    decode = tuple(replace(row, phase=Phase.DECODE) for row in half_other())
    log = write_log(
        tmp_path,
        [
            Batch(rows(), node="x", header=(("revision", "r1"), ("labels", {"precision": "bf16"}))),
            Batch(half_other(), node="y", header=(("origin", Origin.FRAMEWORK),)),
            Batch(decode, node="z", scene="code"),
        ],
    )
    for a, b, agreed in (
        (["node=x"], ["node=y"], 0.5),
        (["label.precision=bf16", "origin=model"], ["scene=code"], 0.5),
        (["origin=framework"], ["phase=decode"], 1.0),
        (["phase=prefill", "model=test-moe", "node=y"], ["phase=decode", "revision=r1"], 1.0),
    ):
        report = compare(find_side(log, a), find_side(log, b), fewest_pairs=24)
        assert report["overall"]["all_layers"]["value"] == agreed, (a, b)
        assert report["a"]["selection"] == ", ".join(
            sorted(a, key=lambda each: "model node origin phase label".find(each[:4]))
        )
    with pytest.raises(InputError, match="the same rows"):
        compare(find_side(log), find_side(log))


def test_a_log_is_not_compared_with_itself_under_another_name(tmp_path: Path) -> None:
    """Links and copies hold the same rows: their full agreement would be said of nothing."""
    log = write_log(tmp_path / "a" / "log", [Batch(rows()), Batch(rows(first_key=99), node="m")])
    (tmp_path / "link").symlink_to(log)
    shutil.copytree(log, tmp_path / "copy")
    for other in (tmp_path / "link", tmp_path / "a/../a", tmp_path / "copy", log / "n"):
        command = ["report", "compare", str(log), str(other), "--fewest-pairs", "1"]
        outcome = CliRunner().invoke(app, command)
        assert isinstance(outcome.exception, InputError), (other, outcome.output)
        assert outcome.exception.what == "Both sides are the same rows."
        assert "--repeats" in outcome.exception.next_step
    apart = (find_side(log, ["phase=prefill"]), find_side(tmp_path / "copy", ["phase=decode"]))
    with pytest.raises(InsufficientDataError):  # nothing in common: no decode rows
        compare(*apart)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model": "other"}, "different models: A of test-moe, B of other. Unless"),
        ({"revision": "r9"}, "different revisions: A of r41, B of r9. What"),
        ({"revision": ""}, "different revisions: A of r41, B of not named."),
    ],
    ids=["model", "revision", "no revision"],
)
def test_sides_of_other_models_or_revisions_are_not_compared_without_a_word(
    tmp_path: Path, fields: dict[str, str], told: str
) -> None:
    """Same shape, other weights: nothing in the numbers tells, so text, page and JSON do."""
    own = {"revision": "r41"}
    report = compared(tmp_path, [with_header(**own)], [with_header(**own | fields)])
    (note,) = report["notes"]
    assert told in note
    assert opening_lines(report)[0] == f"Note: {note}"
    page = comparison_html(report, "c.json")
    assert f"<p><strong>Note</strong>: {note}</p>" in page
    assert ("A: test-moe, B: other" in page) is ("model" in fields)


def test_sides_of_one_model_and_revision_need_no_note(tmp_path: Path) -> None:
    """A note that always stands there is not read."""
    report = compared(tmp_path, [Batch(rows())], [Batch(half_other())])
    assert report["notes"] == []
    assert "<strong>Note" not in comparison_html(report, "c.json")


def test_the_engines_of_both_sides_are_told(tmp_path: Path) -> None:
    """Two kernels of one engine agree as two engines do not; many logs name none."""
    report = compared(
        tmp_path, [with_header(engine="vllm", engine_version="0.32.0")],
        [with_header(engine="", engine_version="")],
    )  # fmt: skip
    assert "Engine: A vllm 0.32.0, B not named." in report["summary"]
    assert (report["a"]["engines"], report["b"]["engines"]) == (["vllm 0.32.0"], [])
    assert "<div>not named<small>n</small></div>" in comparison_html(report, "c.json")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["revision=r9"], "revision: r41, r42."),
        (["node=x", "revision=r42"], "revision: r41, r42; node: x, y."),
        (["label.site=b"], "label.site: a."),
        (["scene=cod"], "scene: chat, code."),
        (["phase=train"], "phase: decode, prefill."),
        (["engine_version=0"], "engine_version: not named."),
    ],
    ids=str,
)
def test_a_condition_that_nothing_satisfies_is_answered_with_what_there_is(
    tmp_path: Path, asked: list[str], told: str
) -> None:
    """Whoever mistypes a name needs the names; conditions may fail together, each true alone."""
    decode = tuple(replace(row, phase=Phase.DECODE) for row in rows())
    unversioned = ("engine_version", "")
    log = write_log(
        tmp_path / "a",
        [
            Batch(
                rows(), node="x",
                header=(("revision", "r41"), ("labels", {"site": "a"}), unversioned),
            ),
            Batch(decode, node="y", scene="code", header=(("revision", "r42"), unversioned)),
        ],
    )  # fmt: skip
    other = find_side(write_log(tmp_path / "b", [Batch(rows())]))
    with pytest.raises(InsufficientDataError) as caught:
        compare(find_side(log, asked), other)
    assert caught.value.why.endswith(f"The log has {told}")


def test_what_there_is_fits_on_a_screen(tmp_path: Path) -> None:
    """A fleet has thousands of nodes, and a producer any name."""
    nodes = [Batch(rows()[:1], header=(("revision", f"r{at:03}" + "\x1b"),)) for at in range(40)]
    long = Batch(rows(), header=(("revision", "q" * 500),))
    log = write_log(tmp_path, [long, *nodes])
    with pytest.raises(InsufficientDataError) as caught:
        compare(find_side(log, ["revision=none"]), find_side(log))
    assert caught.value.why.endswith(" and 31 more.")
    assert "q" * 80 + "…, r000\\x1b, " in caught.value.why
    assert "q" * 81 not in caught.value.why


def test_what_was_typed_is_repeated_in_one_line(tmp_path: Path) -> None:
    """A file that was pasted in the place of a word is not printed back whole."""
    log = str(write_log(tmp_path, [Batch(rows())]))
    for arguments in (
        ["--by", "x" * 9_000],
        ["--a", "x" * 9_000],
        ["--a", "origin=" + "x" * 9_000],
    ):
        outcome = CliRunner().invoke(app, ["report", "compare", log, *arguments])
        assert isinstance(outcome.exception, InputError)
        assert len(str(outcome.exception)) < 400
        assert "…" in outcome.exception.what


@pytest.mark.parametrize(
    "condition", ["revision", "colour=red", "origin=engine", "phase=warmup", "label.=x"]
)
def test_conditions_that_admit_nothing_are_refused(tmp_path: Path, condition: str) -> None:
    """A typing error must not select all rows, nor none."""
    log = write_log(tmp_path, [Batch(rows())])
    with pytest.raises(InputError):
        find_side(log, [condition])


def test_data_directories_log_roots_and_partitions_are_found(tmp_path: Path) -> None:
    """Each of the three is a path that a person has at hand."""
    write_log(tmp_path / "data" / "log", [Batch(rows(), node="n"), Batch(rows(), node="m")])
    for path, names in (
        ("data", ("m", "n")), ("data/log", ("m", "n")), ("data/log/n", ("n",)),
    ):  # fmt: skip
        assert find_side(tmp_path / path).partitions == names
    with pytest.raises(InputError, match="no batch log"):
        find_side(tmp_path)


def test_what_was_executed_is_compared_with_what_was_chosen(tmp_path: Path) -> None:
    """Two logs of one fact: a skew has a name, and so has its absence."""
    framework = (("origin", Origin.FRAMEWORK),)
    for name, executed, words in (
        ("skew", half_other(), "for 50.0 % of the tokens (in at least one layer), most at layer 3"),
        ("none", rows(), "None: for all 24 tokens"),
    ):
        report = compared(tmp_path / name, [Batch(rows())], [Batch(executed, header=framework)])
        (finding,) = report["findings"]
        assert finding["name"] == "framework_skew"
        assert words in finding["text"]
        # A skew that is not there has no cause, and asks for nothing.
        told = (FRAMEWORK_SKEW.likely_cause, FRAMEWORK_SKEW.next_step)
        assert (finding["likely_cause"], finding["next_step"]) == (
            told if name == "skew" else (None, None)
        )


def test_rows_that_no_router_chose_are_named_and_left_out(tmp_path: Path) -> None:
    """A buffer of zeros is a fault of the engine, not a disagreement."""
    zeros = tuple(replace(row, ids=((0, 0, 0), (0, 0, 0))) for row in rows()[:6])
    report = compared(tmp_path, [Batch(rows())], [Batch(zeros + rows()[6:])])
    assert report["overall"]["all_layers"]["value"] == 1.0
    (finding,) = report["findings"]
    assert finding["name"] == "engine_fault"
    assert finding["text"].startswith("6 of 24 rows of side B")


def test_unordered_routes_have_no_top1(tmp_path: Path) -> None:
    """Column 0 of an unordered set is not the first choice."""
    report = compared(tmp_path, [Batch(rows())], [Batch(half_other(), is_ranked=False)])
    assert report["overall"]["top1"] is None
    assert {layer["top1"] for layer in report["layers"]} == {None}
    assert "top-1 is unknown" in " ".join(report["summary"])


def test_each_side_is_compared_with_what_it_saw_again(tmp_path: Path) -> None:
    """Two engines cannot agree more closely than each of them does with itself."""
    again = tuple(replace(row, request="again", time=9) for row in half_other()[:8])
    flipped = tuple(replace(row, ids=tuple(ids[::-1] for ids in row.ids)) for row in again)
    report = compared(tmp_path, [Batch(rows() + again)], [Batch(rows() + flipped)])
    assert report["overall"]["all_layers"]["value"] == 1.0  # first sightings alone are compared
    for name, top1 in (("a", 1.0), ("b", 0.0)):
        stability = report[name]["stability"]
        assert stability["tokens"] == report[name]["duplicates"] == 8
        # Of four sets in 16, two of three experts are the same: two of four distinct ones.
        assert stability["jaccard_stability"]["value"] == pytest.approx((12 + 4 * 0.5) / 16)
        assert stability["top1_stability"]["value"] == top1
    (told,) = [line for line in report["summary"] if line.startswith("Seen again")]
    assert "A: jaccard_stability 87.5 %" in told
    assert "B: jaccard_stability 87.5 %" in told


def test_stability_is_told_where_it_is_known(tmp_path: Path) -> None:
    """Without rank order there is no top-1, without repeats or content keys nothing at all."""
    twice = rows() + tuple(replace(row, request="again", time=9) for row in rows()[:8])
    unordered = compared(tmp_path / "u", [Batch(twice)], [Batch(twice, is_ranked=False)])
    assert unordered["a"]["stability"]["top1_stability"]["value"] == 1.0
    assert unordered["b"]["stability"]["top1_stability"] is None
    once = compared(tmp_path / "o", [Batch(rows())], [Batch(rows())])
    assert once["a"]["stability"] is once["b"]["stability"] is None
    assert not any("Seen again" in line for line in once["summary"])
    # The same request and position twice: nothing says that these are the same tokens.
    same_ids = [Batch(rows() + tuple(replace(row, time=9) for row in half_other()))]
    by_request = compared(tmp_path / "r", same_ids, [Batch(rows())], by="request")
    assert by_request["a"]["duplicates"] == 24
    assert by_request["a"]["stability"] is None


def test_limits_are_judged_by_the_worst_layer_and_all_layers(tmp_path: Path) -> None:
    """One bad layer must not hide in a mean of many."""
    report = compared(
        tmp_path, [Batch(rows())], [Batch(half_other())],
        limits=Limits(overlap=0.9, all_layers=0.5),
    )  # fmt: skip
    assert [(limit["value"], limit["met"]) for limit in report["limits"]] == [
        (pytest.approx(5 / 6), False),
        (0.5, True),
    ]
    assert report["summary"][-2].startswith("Not met: ")


def test_intervals_cover_the_truth_for_alike_tokens() -> None:
    """Requests of 50 alike tokens: 95 % intervals hold the truth about as often as they say."""
    draw = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        own = draw.beta(8, 2, 40)
        hits = draw.binomial(50, own).astype(np.float64)
        found = share_of(hits, np.full(40, 50.0), 40)
        assert found is not None
        assert found["low"] is not None
        assert found["high"] is not None
        held += found["low"] <= 0.8 <= found["high"]
    assert 0.92 <= held / 400 <= 0.98


def test_an_interval_is_that_of_the_formula() -> None:
    """Eight requests of ten tokens each, of which these many agree: worked out by hand."""
    found = share_of(np.array([1, 2, 3, 4, 6, 7, 8, 9]), np.full(8, 10), 8)
    # s² = 8/7 · 2 (4² + 3² + 2² + 1²) / 80² makes n = ¼ / s² = 23.33 draws; t of seven degrees of
    # freedom is 2.3646; about one half Wilson's half width is t / 2 / √(n + t²).
    half = 2.3646 / 2 / (0.25 / (8 / 7 * 60 / 6400) + 2.3646**2) ** 0.5
    assert found is not None
    assert (found["low"], found["high"]) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-4)


def test_intervals_at_the_ends() -> None:
    """Full agreement of a few requests is no proof; one request has no interval at all."""
    perfect = share_of(np.array([5, 5, 5]), np.array([5, 5, 5]), 3)
    assert perfect is not None
    assert perfect["high"] == 1.0
    assert perfect["low"] is not None
    assert perfect["low"] < 0.7
    assert share_of(np.array([3, 0]), np.array([5, 0]), 1) == {
        "value": 0.6, "low": None, "high": None,
    }  # fmt: skip
    assert share_of(np.zeros(3), np.zeros(3), 0) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["a", "b", "c"], ["a", "b", "--repeats"], ["a", "--repeats", "--b", "node=x"],
        ["a", "b", "--by", "node"], ["a", "b", "--min-overlap", "95"],
        ["a", "b", "--fewest-pairs", "0"], ["a", "--repeats", "--by", "request"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_contradicting_arguments_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    """What cannot be meant ends with exit code 2."""
    for name in ("a", "b", "c"):
        write_log(tmp_path / name, [Batch(rows())])
    paths = [str(tmp_path / each) if each in {"a", "b", "c"} else each for each in arguments]
    outcome = CliRunner().invoke(app, ["report", "compare", *paths])
    assert isinstance(outcome.exception, InputError)
    assert outcome.exception.exit_code == 2
