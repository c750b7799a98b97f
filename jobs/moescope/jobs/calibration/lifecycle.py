"""Which version judges from when on: activation and rollback, only ever in the future."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.core.clock import NO_TIME, SystemClock
from moescope.core.emission import LIVE_DOMAIN
from moescope.core.errors import InputError
from moescope.core.thresholds import Activation, ThresholdScope
from moescope.storage.control import insert_rows, next_number, replace_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    import duckdb

    from moescope.core.clock import Clock
    from moescope.storage.store import Store

AHEAD_US = 60_000_000
"""An activation is at least so far past the watermark, so that no window has closed there yet."""

LATEST_AHEAD_US = 7 * 86_400_000_000
"""And at most so far past it: later ones would take effect no earlier, not even a rollback."""

_OWN = " AND ".join(f"{name} = ${name}" for name in ThresholdScope._fields)


def earliest_activation(cursor: duckdb.DuckDBPyConnection, scope: ThresholdScope) -> int:
    """Event time from which a scope's next activation may take effect, in µs.

    60 s past the watermark of the live domain, and not before the scope's newest activation, which
    would come into force again afterwards. A scope that is only in imports and simulations goes by
    theirs; where it is live as well, the times of an import say nothing about now.
    """
    rows = cursor.execute(
        "SELECT domain, watermark_us FROM domains WHERE domain IN (SELECT domain FROM lanes WHERE"
        f" {_OWN})",
        scope._asdict(),
    ).fetchall()
    reached_us = {domain: int(time_us) for domain, time_us in rows}
    reached = reached_us.get(LIVE_DOMAIN, max(reached_us.values(), default=NO_TIME))
    earliest = 0 if reached == NO_TIME else reached + AHEAD_US
    newest = _activations(cursor, scope)
    return max(earliest, newest[-1].effective_from_us) if newest else earliest


def activate(
    store: Store,
    version: str,
    *,
    effective_from_us: int | None = None,
    author: str,
    reason: str,
    clock: Clock | None = None,
) -> Activation:
    """Let a version judge windows that end at or after an event time.

    Args:
        store: The owner's.
        version: A draft, or a retired version that shall judge again.
        effective_from_us: None: as soon as it may.
        author: Who.
        reason: Why.
        clock: For `activated_at`.

    Raises:
        InputError: No such version, it judges already, or the time is too early.
    """
    now_us = (clock or SystemClock()).now_us()

    def change(connection: duckdb.DuckDBPyConnection, commit_id: int) -> Activation:
        scope = _scope_of(connection, version)
        newest = _activations(connection, scope)
        if newest and newest[-1].version == version:
            raise InputError(
                f"Version {version} is the newest activation of its scope already.",
                why=f"It judges from event time {newest[-1].effective_from_us} µs on.",
            )
        activation = Activation(_checked_time(connection, scope, effective_from_us), version)
        _add(connection, commit_id, scope, activation, ("activate", author, reason, now_us))
        return activation

    return store.change(
        change,
        author=author,
        action="threshold activate",
        subject=version,
        reason=reason,
        detail={"effective_from_us": effective_from_us},
    )


def rollback(
    store: Store,
    scope: ThresholdScope,
    *,
    effective_from_us: int | None = None,
    author: str,
    reason: str,
    clock: Clock | None = None,
) -> Activation:
    """Let the version before judge again; without one, nothing is judged.

    A second rollback goes one further back: versions that were rolled back do not count.

    Args:
        store: The owner's.
        scope: Whose.
        effective_from_us: None: as soon as it may.
        author: Who.
        reason: Why.
        clock: For `activated_at`.

    Raises:
        InputError: Nothing is active in the scope, or the time is too early.
    """
    now_us = (clock or SystemClock()).now_us()

    def change(connection: duckdb.DuckDBPyConnection, commit_id: int) -> Activation:
        before = version_before(connection, scope)
        activation = Activation(_checked_time(connection, scope, effective_from_us), before)
        _add(connection, commit_id, scope, activation, ("rollback", author, reason, now_us))
        return activation

    return store.change(
        change,
        author=author,
        action="threshold rollback",
        subject=f"{scope.model} {scope.revision}",
        reason=reason,
        detail=scope._asdict(),
    )


def _scope_of(connection: duckdb.DuckDBPyConnection, version: str) -> ThresholdScope:
    row = connection.execute(
        f"SELECT {', '.join(ThresholdScope._fields)} FROM threshold_versions WHERE version = ?",
        [version],
    ).fetchone()
    if row is None:
        raise InputError(
            f"There is no threshold version {version!r}.",
            next_step="`moescope threshold list` shows the versions.",
        )
    return ThresholdScope(*row)


def _activations(connection: duckdb.DuckDBPyConnection, scope: ThresholdScope) -> list[Activation]:
    """In order of event time; of two at one time the later one last."""
    rows = connection.execute(
        f"SELECT effective_from_us, version FROM threshold_activations WHERE {_OWN}"
        " ORDER BY effective_from_us, activation",
        scope._asdict(),
    ).fetchall()
    return [Activation(*row) for row in rows]


def version_before(cursor: duckdb.DuckDBPyConnection, scope: ThresholdScope) -> str:
    """The version that a rollback returns to; empty: none, and judging goes off.

    Raises:
        InputError: Nothing is active in the scope.
    """
    rows = cursor.execute(
        f"SELECT action, version FROM threshold_activations WHERE {_OWN} ORDER BY activation",
        scope._asdict(),
    ).fetchall()
    standing = standing_versions(rows)
    if not standing:
        raise InputError(
            f"No thresholds are active for {scope.model} {scope.revision}.",
            next_step="`moescope threshold list` shows what there is.",
        )
    return standing[-2] if len(standing) > 1 else ""


def standing_versions(activations: Iterable[tuple[str, str]]) -> list[str]:
    """Versions that were activated and not rolled back, the one in force last.

    Args:
        activations: Action and version of each activation of one scope, in their order.
    """
    standing: list[str] = []
    for action, version in activations:
        if action == "rollback":
            standing.pop()
        else:
            standing.append(version)
    return standing


def _checked_time(
    connection: duckdb.DuckDBPyConnection, scope: ThresholdScope, wanted_us: int | None
) -> int:
    earliest = earliest_activation(connection, scope)
    if wanted_us is None:
        return earliest
    if wanted_us < earliest:
        raise InputError(
            "Thresholds cannot take effect that early.",
            why=f"Event time {wanted_us} µs is before {earliest} µs: 60 s past the watermark, or"
            " the newest activation.",
            next_step="Leave the time out to activate as soon as possible.",
        )
    if wanted_us > earliest + LATEST_AHEAD_US:
        raise InputError(
            "Thresholds cannot take effect that late.",
            why=f"Event time {wanted_us} µs is more than 7 days after {earliest} µs, and until then"
            " no other activation of this scope, nor a rollback, could take effect.",
            next_step="Activate them when it is time.",
        )
    return wanted_us


def _add(
    connection: duckdb.DuckDBPyConnection,
    commit_id: int,
    scope: ThresholdScope,
    activation: Activation,
    by: tuple[str, str, str, int],
) -> None:
    action, author, reason, now_us = by
    row = {
        "activation": next_number(connection, "threshold_activations", "activation"),
        **scope._asdict(),
        "version": activation.version,
        "effective_from_us": activation.effective_from_us,
        "activated_at": now_us,
        "action": action,
        "author": author,
        "reason": reason,
    }
    insert_rows(connection, "threshold_activations", [row], commit_id)
    _set_status(connection, commit_id, scope, activation.version)


def _set_status(
    connection: duckdb.DuckDBPyConnection, commit_id: int, scope: ThresholdScope, active: str
) -> None:
    """The named version is active, what was active before is retired."""
    found = connection.execute(
        "SELECT * EXCLUDE (created_at, commit_id), epoch_us(created_at) AS created_at"
        f" FROM threshold_versions WHERE {_OWN} AND (version = $active OR status = 'active')",
        scope._asdict() | {"active": active},
    )
    names = [column[0] for column in found.description or ()]
    rows: list[dict[str, Any]] = []
    for values in found.fetchall():
        row = dict(zip(names, values, strict=True))
        status = "active" if row["version"] == active else "retired"
        if row["status"] != status:
            rows.append(row | {"status": status})
    replace_rows(connection, "threshold_versions", rows, commit_id)
