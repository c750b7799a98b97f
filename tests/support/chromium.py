"""Debian's Chromium, driven by playwright; nothing is downloaded."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

PACKAGE = "apt-get install -y --no-install-recommends chromium"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; where there is none the test is skipped, or fails if services are required."""
    path = shutil.which("chromium")
    if path is None:
        what = f"Chromium is not on PATH: {PACKAGE}"
        if os.environ.get("MOESCOPE_REQUIRE_SERVICES") == "1":
            pytest.fail(what)
        pytest.skip(what)
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 (only where there is a browser)

    with sync_playwright() as playwright:
        # The sandbox needs user namespaces, which containers often do not give.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
