from __future__ import annotations

import numpy as np
import pytest

from moescope.core.clock import NO_TIME
from moescope.core.router_sums import FIXED_POINT, SIMILARITY_PANE_US
from moescope.core.vocabulary import Phase
from moescope.processors.config import WindowConfig
from moescope.processors.kernels.records import CELL
from moescope.processors.similarity import OPEN_PANES, SimilarityPanes, similarity_sums

SECONDS_OF_DECODE = SIMILARITY_PANE_US["decode"] // 1_000_000


def _add(
    panes: SimilarityPanes,
    requests: list[int],
    counts: np.ndarray,
    second: int = 0,
    offset: int = 0,
) -> None:
    """Add one cell per request, with these counts each."""
    cells = np.zeros(len(requests), CELL)
    cells["pane"] = second
    cells["phase"] = Phase.DECODE
    panes.add(cells, np.array(requests, np.uint64), np.tile(counts, (len(requests), 1)), offset)


def test_vectors_follow_the_formula() -> None:
    """A request that sends 40 tokens to the same two of four experts: w = 40 / √(1600 · 80 …)."""
    sums = similarity_sums(np.array([[[40, 40, 0, 0]]]), 2, 32, start_us=5, size_us=7)
    assert sums is not None
    w = round(40 / ((3200 - 80) * 40 / 39) ** 0.5 * FIXED_POINT)
    assert sums.weighted.tolist() == [[w, w, 0, 0]]
    assert sums.squares.tolist() == [2 * w * w]
    assert (sums.requests.tolist(), sums.left_out.tolist()) == ([1], [0])
    assert (sums.start_us, sums.size_us) == (5, 7)


def test_request_without_any_repeat_is_left_out_and_counted() -> None:
    """32 tokens on 32 experts say nothing beyond chance; the root would be of zero."""
    sums = similarity_sums(np.ones((1, 1, 32), np.uint32), 1, 32, start_us=0, size_us=1)
    assert sums is not None
    assert (sums.requests.tolist(), sums.left_out.tolist()) == ([0], [1])
    assert not sums.weighted.any()


def test_pane_of_short_requests_has_no_sums() -> None:
    """31 tokens are too few, at every layer."""
    assert similarity_sums(np.array([[[31, 0]]]), 1, 32, start_us=0, size_us=1) is None


@pytest.mark.parametrize("order", [1, -1])
def test_requests_of_smallest_hash_stay_whatever_the_order(order: int) -> None:
    """Of five requests three are kept, with all of their rows."""
    panes = SimilarityPanes((1, 2), 1, WindowConfig(similarity_requests=3), NO_TIME)
    for _ in range(2):
        _add(panes, [2**64 - 1, 7, 2**63, 3, 11][::order], np.array([20, 0], np.uint16))
    panes.seal()
    ((phase, sums),) = panes.closed()
    assert phase == Phase.DECODE
    assert sums.requests.tolist() == [3]


def test_rows_of_a_closed_pane_are_ignored() -> None:
    """A watermark at the pane's end closes it, and what comes later opens nothing."""
    panes = SimilarityPanes((1, 2), 1, WindowConfig(), NO_TIME)
    _add(panes, [1], np.array([40, 0], np.uint16), offset=9)
    panes.advance(SIMILARITY_PANE_US["decode"] - 1)
    assert not list(panes.closed())
    assert panes.lowest_offset() == 9
    panes.advance(SIMILARITY_PANE_US["decode"])
    assert len(list(panes.closed())) == 1
    _add(panes, [1], np.array([40, 0], np.uint16))
    assert panes.lowest_offset() is None


def test_panes_without_watermark_are_bounded() -> None:
    """One pane more than may be open closes the oldest, which stays closed after a restart."""
    panes = SimilarityPanes((1, 2), 1, WindowConfig(), NO_TIME)
    for number in range(OPEN_PANES + 1):
        _add(panes, [1], np.array([40, 0], np.uint16), number * SECONDS_OF_DECODE, number)
    assert [sums.start_us for _, sums in panes.closed()] == [0]
    restarted = SimilarityPanes((1, 2), 1, WindowConfig(), NO_TIME)
    restarted.restore(panes.state())
    for each in (panes, restarted):
        before = each.lowest_offset()
        _add(each, [1], np.array([40, 0], np.uint16), 0)
        assert each.lowest_offset() == before


def test_pane_of_many_requests_keeps_what_it_held_before_it_grew() -> None:
    """75 requests in two calls, 20 rows each time, more than a pane has room for at first."""
    panes = SimilarityPanes((1, 2), 1, WindowConfig(), NO_TIME)
    for _ in range(2):
        for requests in (range(5), range(5, 75)):
            _add(panes, list(requests), np.array([15, 5], np.uint16))
    panes.seal()
    ((_, sums),) = panes.closed()
    each = similarity_sums(np.array([[[30, 10]]]), 1, 32, start_us=0, size_us=1)
    assert each is not None
    assert sums.requests.tolist() == [75]
    assert sums.weighted.tolist() == (75 * each.weighted).tolist()
    assert sums.squares.tolist() == (75 * each.squares).tolist()
