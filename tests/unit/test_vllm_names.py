from __future__ import annotations

import pytest

from moescope.producers.vllm_plugin.names import client_name


@pytest.mark.parametrize(
    ("engine_id", "request_id", "call"),
    [
        ("cmpl-abc-0-1f2e3d4c", "cmpl-abc", "cmpl-abc"),
        ("cmpl-abc-3-1f2e3d4c", "cmpl-abc-3", "cmpl-abc"),
        ("chatcmpl-abc-1f2e3d4c", "chatcmpl-abc", "chatcmpl-abc"),
        ("0_chatcmpl-abc-1f2e3d4c", "chatcmpl-abc", "chatcmpl-abc"),
        ("2_chatcmpl-abc-1f2e3d4c", "chatcmpl-abc#2", "chatcmpl-abc"),
        ("1_cmpl-abc-2-1f2e3d4c", "cmpl-abc-2#1", "cmpl-abc"),
        ("cmpl-order-7-0-1f2e3d4c", "cmpl-order-7", "cmpl-order-7"),
        ("cmpl-a\nb-0-1f2e3d4c", "cmpl-a\nb", "cmpl-a\nb"),
        ("7_1_-1f2e3d4c", "1_#7", "1_"),
        ("12_34-1f2e3d4c", "12_34", "12_34"),
        ("00_cmpl-a-00-1f2e3d4c", "cmpl-a", "cmpl-a"),
        ("cmpl--1-1f2e3d4c", "cmpl--1", "cmpl--1"),
    ],
)
def test_requests_of_the_api_are_called_as_its_answers(
    engine_id: str, request_id: str, call: str
) -> None:
    """What a client can look up is what was recorded; sequences of one call differ."""
    assert client_name(engine_id) == (request_id, call)


@pytest.mark.parametrize("engine_id", ["0-1f2e3d4c", "17", "", "cmpl-abc", "request-xyz"])
def test_ids_that_no_client_has_stay_whole(engine_id: str) -> None:
    """Numbers of an offline engine begin anew with each process: their digits tell them apart."""
    assert client_name(engine_id) == (engine_id, engine_id)


LONG = ("x" * 5_000, "9" * 5_000, "\ud800" * 5_000, "-1" * 5_000, "_" * 5_000, "日" * 400)


@pytest.mark.parametrize("long", LONG)
@pytest.mark.parametrize(
    "form", ["{}", "cmpl-{}-3-1f2e3d4c", "chatcmpl-{}-1f2e3d4c", "{}_cmpl-a-{}"]
)
def test_long_ids_get_a_short_name_that_stays_the_same(long: str, form: str) -> None:
    """A client's header of thousands of characters must not cost its request its rows."""
    engine_id = form.format(long, long)
    name = client_name(engine_id)
    assert name == client_name(engine_id)
    for part in name:
        assert len(part.encode()) <= 512
        assert part.startswith(engine_id[:20].encode(errors="replace").decode())
    assert client_name(form.format(long + "y", long)) != name


def test_names_of_one_long_call_belong_together_and_differ() -> None:
    """Prompts of a call share its task, and are requests of their own."""
    first, second = (client_name(f"cmpl-{'x' * 5_000}-{prompt}-1f2e3d4c") for prompt in (0, 1))
    assert first.request == first.call == second.call
    assert second.request != first.request


@pytest.mark.parametrize("piece", ["-1", "_1", "a", "1", "-", "_", "1-", "-cmpl-"])
def test_the_longest_ids_are_read_at_once(piece: str) -> None:
    """A quadratic pattern would take hours for a megabyte, in the engine's own thread."""
    assert len(client_name(f"1_cmpl-{piece * 500_000}!").request.encode()) <= 512
