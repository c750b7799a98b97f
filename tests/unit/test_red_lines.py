"""Alerts, events and notifications that follow from exceedances."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from support.red_line_store import (
    LANE,
    OTHER_LANE,
    VALUES,
    RedLineStore,
    arrivals,
    book_of,
    final_us,
    key,
    rule,
    slot_us,
    version,
)

from moescope.core.clock import END_OF_TIME
from moescope.core.thresholds import Activation
from moescope.jobs.alerts import AlertSeries, alert_id


def sent(store: RedLineStore) -> list[tuple[str, str]]:
    """State and alert of every notification, in the order in which they were decided."""
    bodies = [json.loads(row["body_json"]) for row in store.rows("outbox")]
    ordered = sorted(bodies, key=lambda body: (body["decided_at"], body["notification"]))
    return [(body["state"], body["alert"]) for body in ordered]


def test_nothing_over_the_line_writes_nothing() -> None:
    """Health must leave no rows behind, or the tables grow with traffic."""
    store = RedLineStore(book_of(version("t-1", rule())))
    store.play(arrivals("....?..."), until=10)
    assert store.rows("alerts") == store.rows("alert_events") == store.rows("outbox") == []


def test_an_alert_from_first_slot_to_end() -> None:
    """The whole life of an alert, as the tables tell it."""
    store = RedLineStore(book_of(version("t-1", rule())), receivers=("log", "webhook"))
    store.play(arrivals(".oO......", VALUES | {"O": 7.5}), until=8)
    (alert,) = store.alerts()
    assert alert["alert"] == alert_id(AlertSeries.of(key(1)), slot_us(1))
    assert alert["state"] == "resolved"
    assert alert["fired_at"] - alert["began_at"] == timedelta(seconds=5)
    assert alert["resolved_at"] - alert["began_at"] == timedelta(seconds=35)
    assert (alert["worst_value"], alert["worst_start"], alert["worst_layer"]) == (7.5, 2, 1)
    assert (alert["version"], alert["caused_by"], alert["historic"]) == ("t-1", "", False)
    assert store.states(alert["alert"]) == ["pending", "firing", "recovering", "resolved"]
    assert sent(store) == [("firing", alert["alert"])] * 2 + [("resolved", alert["alert"])] * 2
    assert {row["receiver"] for row in store.rows("outbox")} == {"log", "webhook"}


def test_a_slot_is_judged_when_it_is_final_and_not_before() -> None:
    """Windows of a slot may still arrive for two seconds after its end."""
    store = RedLineStore(book_of(version("t-1", rule(needed=1, of=1))))
    store.commit(arrivals("o"), {"live": final_us(0) - 1})
    assert store.rows("alerts") == []
    store.commit([], {"live": final_us(0)})
    assert [row["state"] for row in store.alerts()] == ["firing"]


def test_a_slot_that_comes_too_late_changes_no_alert() -> None:
    """What was told stays told; the table still keeps the late value for people."""
    store = RedLineStore(book_of(version("t-1", rule(needed=1, of=1))))
    store.commit([], {"live": final_us(5)})
    store.commit(arrivals("o"), {"live": final_us(6)})
    assert store.rows("alerts") == []
    assert len(store.rows("exceedances")) == 1


def test_one_cause_is_one_page() -> None:
    """Families, sizes and scopes that see one fault must not wake anybody twice."""
    rules = [rule(), rule(family="router"), rule(scope="node")]
    store = RedLineStore(book_of(version("t-1", *rules)))
    node: dict[str, Any] = {"scope_kind": "node", "scope_value": "n1"}
    store.play(
        [
            *arrivals("_oo......."),
            *arrivals("__oooooo......", family="router"),
            *arrivals("_ooo......", **node),
        ],
        until=20,
    )
    rows = {(row["family"], row["scope_kind"]): row for row in store.alerts()}
    lead = rows["load", "all"]["alert"]
    assert rows["load", "all"]["caused_by"] == ""
    assert rows["router", "all"]["caused_by"] == lead
    assert rows["load", "node"]["caused_by"] == lead
    assert sent(store) == [("firing", lead), ("resolved", lead)]
    (told,) = (row for row in store.rows("outbox") if '"resolved"' in row["body_json"])
    body = json.loads(told["body_json"])
    assert body["decided_at"] == "2026-01-01T00:01:05Z", "when the last of them was over"
    assert body["resolved_at"] == "2026-01-01T00:00:40Z"


def test_another_model_is_another_cause() -> None:
    """A fault of one model says nothing about another one's."""
    other = version("t-2", rule(), lane=OTHER_LANE)
    store = RedLineStore(book_of(version("t-1", rule()), other))
    store.play([*arrivals("oo"), *arrivals("oo", lane=OTHER_LANE, version="t-2")], until=1)
    assert [row["caused_by"] for row in store.alerts()] == ["", ""]
    assert [state for state, _ in sent(store)] == ["firing", "firing"]


def test_a_quarter_of_an_hour_later_it_is_news() -> None:
    """A chronic alert must not swallow every later fault of its model."""
    store = RedLineStore(book_of(version("t-1", rule(), rule(family="router"))))
    long = "o" * 200
    store.play([*arrivals(long), *arrivals("_" * 183 + "oo", family="router")], until=199)
    assert [row["caused_by"] for row in store.alerts()] == ["", ""]
    assert [state for state, _ in sent(store)] == ["firing", "firing"]


def test_what_fires_after_the_end_was_told_is_news() -> None:
    """After "resolved" silence would be taken for health."""
    store = RedLineStore(book_of(version("t-1", rule(), rule(family="router"))))
    store.play([*arrivals("oo......"), *arrivals("_" * 10 + "oo", family="router")], until=12)
    assert [state for state, _ in sent(store)] == ["firing", "resolved", "firing"]


def test_silence_is_told_and_never_resolves() -> None:
    """A broken pipe after a fault must not look like its end."""
    store = RedLineStore(book_of(version("t-1", rule())), no_data_after_us=20_000_000)
    store.play(arrivals("oo"), until=100)
    (alert,) = store.alerts()
    assert alert["state"] == "no_data"
    assert [state for state, _ in sent(store)] == ["firing", "no_data"]
    events = store.rows("alert_events")
    assert events[-1]["slot"] - alert["last_slot"] == timedelta(seconds=20)
    assert events[-1]["why"] == "no windows for 20 s of event time"


def test_the_end_of_time_is_silence() -> None:
    """A domain of which nothing can follow leaves no slot unjudged and resolves nothing."""
    lane = replace(LANE, domain="import-1")
    store = RedLineStore(book_of(version("t-1", rule(), lane=lane)))
    store.commit(arrivals("oo", lane=lane), {"import-1": END_OF_TIME})
    (alert,) = store.alerts()
    assert store.states(alert["alert"]) == ["pending", "firing", "no_data"]
    store.commit([], {"import-1": END_OF_TIME})
    assert len(store.rows("alert_events")) == 3


def test_slots_explained_by_the_mix_keep_an_alert_open() -> None:
    """A change of traffic is neither the fault nor its end."""
    store = RedLineStore(book_of(version("t-1", rule())), no_data_after_us=20_000_000)
    store.play(arrivals("oo" + "?" * 20), until=21)
    assert [row["state"] for row in store.alerts()] == ["firing"]


def test_new_thresholds_take_over_an_open_alert() -> None:
    """Activation in the middle of an alert neither drops nor doubles it."""
    book = book_of(
        version("t-1", rule(line=1.0)),
        version("t-2", rule(line=10.0)),
        activations=(Activation(0, "t-1"), Activation(slot_us(3), "t-2")),
    )
    store = RedLineStore(book)
    store.play(arrivals("oo.") + arrivals("___" + "o" * 6, version="t-2"), until=8)
    (alert,) = store.alerts()
    assert alert["state"] == "resolved", "three spreads are under the new line of ten"
    assert alert["version"] == "t-1"


def test_a_slot_across_a_change_of_thresholds_is_judged_by_both() -> None:
    """The slot of the change holds windows that closed before and after it."""
    book = book_of(
        version("t-1", rule(needed=1, of=1)),
        version("t-2", rule(needed=1, of=1, line=10.0)),
        activations=(Activation(0, "t-1"), Activation(slot_us(0) + 1_000_000, "t-2")),
    )
    store = RedLineStore(book)
    store.play(arrivals("o") + arrivals(".", version="t-2"), until=0)
    assert [row["state"] for row in store.alerts()] == ["firing"]


def test_exceedances_of_versions_that_are_not_in_force_do_not_count() -> None:
    """A rollback with an earlier effective time must not be judged by both."""
    store = RedLineStore(book_of(version("t-1", rule()), version("t-2", rule())))
    store.play(arrivals("ooo", version="t-2"), until=4)
    assert store.rows("alerts") == []


@pytest.mark.parametrize("silent_first", [False, True])
def test_switching_judging_off_closes_alerts(*, silent_first: bool) -> None:
    """Nothing would ever close them, since no window is judged any more."""
    judged = version("t-1", rule())
    store = RedLineStore(book_of(judged), no_data_after_us=20_000_000)
    store.play(arrivals("oo"), until=10 if silent_first else 2)
    store.book.replace(
        {"t-1": judged},
        {judged.scope: (Activation(0, "t-1"), Activation(slot_us(2), ""))},
    )
    store.play([], until=12)
    (alert,) = store.alerts()
    assert alert["state"] == "resolved"
    assert "no thresholds in force" in store.rows("alert_events")[-1]["why"]


def test_a_backlog_is_marked_and_what_still_fires_is_sent_at_its_end() -> None:
    """Nobody is woken by last week; a fault that is still there must not be lost either."""
    backlog = {"is": True}
    store = RedLineStore(
        book_of(version("t-1", rule(), rule(family="router"))),
        historic=lambda _: backlog["is"],
    )
    over = arrivals("oo......", family="router")
    store.play([*over, *arrivals("____oooooo")], until=9)
    assert [row["historic"] for row in store.alerts()] == [True, True]
    assert store.rows("outbox") == []
    backlog["is"] = False
    store.play([], until=10)
    assert [row["historic"] for row in store.alerts()] == [True, False]
    assert [state for state, _ in sent(store)] == ["firing"]


def test_a_named_pattern_is_kept_and_told() -> None:
    """Detectors write the pattern into the row; the next slot must not wipe it out."""
    store = RedLineStore(book_of(version("t-1", rule())))
    store.play(arrivals("oo"), until=1)
    store.connection.execute("UPDATE alerts SET pattern = 'hot_expert'")
    store.hook.reset()
    store.play(arrivals("__......"), until=8)
    (alert,) = store.alerts()
    assert (alert["state"], alert["pattern"]) == ("resolved", "hot_expert")
    assert json.loads(store.rows("outbox")[-1]["body_json"])["pattern"] == "hot_expert"
