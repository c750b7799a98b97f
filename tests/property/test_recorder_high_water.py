from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moescope.core.vocabulary import Phase, RowFlag
from moescope.producers.recording.running import RunningRequests, flags_for

ROWS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(0, 6),
        st.sampled_from([Phase.PREFILL, Phase.DECODE, Phase.DRAFT, Phase.WARMUP]),
        st.booleans(),
        st.sampled_from([1, 1, 1, 25]),
    ),
    min_size=1,
    max_size=12,
).map(
    lambda drawn: [
        (name, position + more, phase, is_padding)
        for name, position, phase, is_padding, rows in drawn
        for more in range(rows)
    ]
)


@given(calls=st.lists(ROWS, max_size=4), one_phase=st.booleans(), has_padding=st.booleans())
def test_flags_follow_the_first_attempt_rule(
    calls: list[list[tuple[str, int, Phase, bool]]], *, one_phase: bool, has_padding: bool
) -> None:
    """A row is recomputed exactly when an earlier counting row of its request was not below it."""
    running = RunningRequests()
    highest: dict[str, int] = {}
    for rows in calls:
        expected = []
        for name, position, each, is_padding in rows:
            phase = rows[0][2] if one_phase else each
            flag = RowFlag.PADDING if has_padding and is_padding else RowFlag.NONE
            if not flag and phase in {Phase.PREFILL, Phase.DECODE}:
                if position <= highest.get(name, -1):
                    flag = RowFlag.RECOMPUTED
                highest[name] = max(highest.get(name, -1), position)
            expected.append(int(flag))
        runs: list[list[object]] = []
        for name, *_ in rows:
            if runs and runs[-1][0] == name:
                runs[-1][1] += 1  # type: ignore[operator]  # a name and a count
            else:
                runs.append([name, 1])
        resolved = running.resolve([str(name) for name, _ in runs])
        flags = flags_for(
            [request for request in resolved.requests if request],
            [int(str(count)) for _, count in runs],
            np.array([position for _, position, _, _ in rows]),
            int(rows[0][2]) if one_phase else np.array([int(row[2]) for row in rows]),
            np.array([row[3] for row in rows]) if has_padding else None,
        )
        assert flags.tolist() == expected
