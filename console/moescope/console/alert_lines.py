"""Alerts as lines for whoever watches the owner's output."""

from __future__ import annotations

import json
import logging
from typing import Final

from moescope.console.output import note
from moescope.core.printable import printable

_LOGGER: Final = "moescope.alerts"


class _Lines(logging.Handler):
    """Prints what the log receiver writes, in words."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line per notification."""
        note(alert_line(record.getMessage()))


def alert_line(body: str) -> str:
    """A notification's document in one line that a terminal can show."""
    try:
        document = json.loads(body)
        alert = f"alert {document['alert']} " if document.get("alert") else ""
        return printable(f"{alert}{document.get('state', '')}: {document['summary']}".strip(": "))
    except (ValueError, KeyError, TypeError, AttributeError):
        return printable(body)


def show_alert_lines() -> None:
    """Print a line when an alert fires, resolves or loses its data; may be called twice."""
    logger = logging.getLogger(_LOGGER)
    if not any(isinstance(each, _Lines) for each in logger.handlers):
        logger.addHandler(_Lines())
        logger.setLevel(logging.INFO)
        logger.propagate = False
