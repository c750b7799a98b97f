from __future__ import annotations

from moescope.producers.recording.sampling import Sampling

NAMES = [f"request-{number}" for number in range(2_000)]


def test_a_smaller_share_takes_a_part_of_a_larger_one() -> None:
    """Stepping down leaves whole requests out, and starts none anew."""
    sampling = Sampling(0.5)
    half = {name for name in NAMES if sampling.takes(name)}
    sampling.change(0.25)
    quarter = {name for name in NAMES if sampling.takes(name)}
    assert quarter < half
    assert 850 < len(half) < 1_150
    assert 400 < len(quarter) < 600
    sampling.change(1.0)
    assert all(map(sampling.takes, NAMES))


def test_what_is_no_request_id_is_left_to_others_to_refuse() -> None:
    """Rows that cannot be recorded count as rejected, not as unsampled."""
    sampling = Sampling(1e-9)
    bad: object
    for bad in (None, "\ud800", "x" * 600):
        assert sampling.takes(bad)
    assert not any(map(sampling.takes, NAMES))


def test_draws_are_not_kept_for_ever() -> None:
    """A million requests leave no million entries behind."""
    sampling = Sampling(0.5)
    for number in range(10_000):
        sampling.takes(f"request-{number}")
    assert len(sampling._draws) <= 4_096  # noqa: SLF001 - what must not grow


class _ChangedAmid(Sampling):
    """Another thread changes the share while requests are picked."""

    def _draw(self, request: str) -> int:
        draw = super()._draw(request)
        if request == NAMES[-1]:
            self.change(0.01)
        return draw


def test_what_was_picked_by_an_earlier_share_does_not_stay() -> None:
    """Batches say the new share: the next call of the same requests follows it."""
    sampling = _ChangedAmid(0.5)
    sampling.pick(NAMES)
    picked = sampling.pick([*NAMES])
    assert picked.names == [name for name in NAMES if sampling.takes(name)]
    assert len(picked.names) < 60
