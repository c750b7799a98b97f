from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.calibrated_fleet import calibrated_report
from support.chromium import chromium

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

PHONE = 400
PHONE_FIGURES = 3
"""Enough to see whether charts fit; all of them are drawn at full width."""


def test_report_opens_offline_and_draws_its_charts(tmp_path: Path) -> None:
    """Whoever opens the file, wherever, sees a whole page: on a desk, on a phone, at night."""
    made = calibrated_report(tmp_path)
    page = made.html
    assert made.report["fired"]["held_out"]
    assert made.report["distributions"]
    assert any("did not see" in sentence for sentence in made.report["summary"])
    with chromium() as browser:
        for width, scheme in ((1280, "light"), (PHONE, "dark")):
            _check(browser, page, width, scheme)


def _check(browser: Browser, path: Path, width: int, scheme: str) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        offline=True,
    )
    page = context.new_page()
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    figures = page.locator("figure[data-spec]")
    assert figures.count() >= 6
    for number in range(figures.count() if width > PHONE else PHONE_FIGURES):
        figures.nth(number).scroll_into_view_if_needed()
        figures.nth(number).locator("svg").wait_for(timeout=20_000)
        box = figures.nth(number).locator("svg").bounding_box()
        assert box is not None
        assert box["width"] > width / 4
        assert box["height"] > 60
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 29)" if scheme == "dark" else "rgb(255, 255, 255)")
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    context.close()


@pytest.mark.parametrize("required", [True, False])
def test_missing_browser_is_said(monkeypatch: pytest.MonkeyPatch, *, required: bool) -> None:
    """The gate must not pass because a browser was not there; elsewhere the package is named."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("MOESCOPE_REQUIRE_SERVICES", "1" if required else "0")
    outcome = pytest.fail.Exception if required else pytest.skip.Exception
    with pytest.raises(outcome, match="apt-get install"), chromium():
        pass
