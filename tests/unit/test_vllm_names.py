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
