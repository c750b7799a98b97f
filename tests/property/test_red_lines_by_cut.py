"""Alerts are a function of exceedances and event time, not of commits and restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.red_line_store import (
    VALUES,
    Arrival,
    RedLineStore,
    arrivals,
    book_of,
    exceedance,
    final_us,
    key,
    rule,
    slot_us,
    version,
)

from moescope.core.thresholds import Activation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn

SERIES: tuple[dict[str, Any], ...] = (
    {},
    {"family": "router"},
    {"scope_kind": "node", "scope_value": "n1"},
)
SLOTS = 36


def book() -> Any:
    """Rules of two versions: the second asks for more, and does not know the family `router`."""
    return book_of(
        version("t-1", rule(), rule(family="router", needed=3, of=5), rule(scope="node")),
        version("t-2", rule(needed=3, of=4, line=2.0), rule(scope="node", needed=1, of=1)),
        activations=(Activation(0, "t-1"), Activation(slot_us(20) + 2_500_000, "t-2")),
    )


@st.composite
def streams(draw: DrawFn) -> list[Arrival]:
    """Exceedances of three series, some slots in two parts, each before its slot is final."""
    found = []
    for fields in SERIES:
        runs = st.sampled_from(["o", "oo", "oooo", ".", "....", ".......", "?", "__", "_" * 7])
        slots = "".join(draw(st.lists(runs, min_size=4, max_size=14)))[:SLOTS]
        for each in arrivals(slots, **fields):
            index = each.value.start
            names = ("t-1", "t-2") if index == 20 else ("t-1" if index < 20 else "t-2",)
            for name in names:
                delay = draw(st.integers(0, 1_999_999))
                worse = each.value.value + draw(st.sampled_from([0.0, 0.0, 4.0]))
                found.append(
                    Arrival(
                        slot_us(index + 1) + delay,
                        key(index, version=name, **fields),
                        exceedance(worse, start=index, layer=draw(st.integers(0, 1))),
                    )
                )
    return sorted(found, key=lambda each: each.reached_us)


def outcome(
    stream: Sequence[Arrival], cuts: Sequence[int], restarts: Sequence[bool]
) -> dict[str, Any]:
    """Tables after the stream in commits of these sizes, with restarts before some of them."""
    store = RedLineStore(book(), no_data_after_us=25_000_000)
    position = number = 0
    while position < len(stream):
        size = cuts[number % len(cuts)]
        part = stream[position : position + size]
        if restarts[number % len(restarts)]:
            store.restart()
        store.commit(part, {"live": part[-1].reached_us})
        position, number = position + size, number + 1
    store.commit([], {"live": final_us(SLOTS + 4)})
    return {name: store.rows(name) for name in ("alerts", "alert_events", "outbox")}


@settings(max_examples=20, deadline=None)
@given(
    streams(),
    st.lists(st.integers(6, 40), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=4),
)
def test_cuts_and_restarts_change_no_alert(
    stream: list[Arrival], cuts: list[int], restarts: list[bool]
) -> None:
    """However records are cut, and however often the owner restarts, the same people are paged."""
    assert outcome(stream, cuts, restarts) == outcome(stream, [10**6], [False])


def test_the_streams_reach_every_state() -> None:
    """The property would be empty if hardly anything fired."""
    stream = sorted(
        (
            *arrivals("oo......" + "_" * 6 + "ooo" + "_" * 8, VALUES),
            *arrivals("..ooo", family="router"),
        ),
        key=lambda each: each.reached_us,
    )
    tables = outcome(stream, [3], [True, False])
    states = {row["state"] for row in tables["alert_events"]}
    assert states == {"pending", "firing", "recovering", "resolved", "no_data"}
    assert any(row["caused_by"] for row in tables["alerts"])
