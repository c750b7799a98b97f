"""What became of returned routes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReturnedRoutesCounters:
    """What was done so far; rows are tokens.

    Attributes:
        responses: Responses of which routes were understood.
        refused_responses: Responses without usable routes.
        handed_over_rows: Handed to the recorder, which has counters of its own.
        missed_rows: Computed by the engine, and not to be seen: zeros, unknown ids, routes that
            cannot be placed. The recorder counts them as unseen.
        cached_rows: Returned although they came from a prefix cache.
        repeated_rows: Returned before: by an earlier turn of the conversation, or by the same
            response, handed over twice.
        surplus_rows: Returned for last tokens, which are never computed.
        internal_errors: Errors of this adapter itself.
    """

    responses: int = 0
    refused_responses: int = 0
    handed_over_rows: int = 0
    missed_rows: int = 0
    cached_rows: int = 0
    repeated_rows: int = 0
    surplus_rows: int = 0
    internal_errors: int = 0
