"""File names of reports."""

from __future__ import annotations


def report_name(version: str, ending: str) -> str:
    """Name of a version's report; characters that a file name should not have become dashes."""
    plain = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-"
        for letter in version
    )
    return f"calibration-{plain}.{ending}"
