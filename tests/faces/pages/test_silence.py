"""A page whose member says nothing any more, though its connection stands: in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from faces.pages.browser import Watched, watched
from faces.pages.test_pages import wait_until_stable
from support.cluster import DevCluster, dev_cluster
from support.wait import WAIT_TIMEOUT, wait_until

SHOWN_WITHIN = 25_000
"""Milliseconds until a page says that its member is silent: two beats of ten seconds, and more."""
BACK_WITHIN = 50_000
"""Milliseconds until it has come back: it tries again each half a minute at the least."""

COUNT_BEATS = """
window.beats = 0;
window.EventSource = class extends EventSource {
  constructor(...of) {
    super(...of);
    this.addEventListener("beat", () => window.beats++);
  }
};
"""


@pytest.fixture(scope="module")
def quiet(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    """A cluster in which nothing happens."""
    with dev_cluster(request.session, members=2, workers=1) as made:
        yield made


@pytest.fixture
def still(browser: Browser, quiet: DevCluster) -> Iterator[Watched]:
    """A page of the first member on which nothing changes."""
    with watched(browser, f"http://{quiet.record['members'][0]['http']}") as web:
        web.page.add_init_script(COUNT_BEATS)
        wait_until_stable(web.open("/jobs"))
        yield web


def test_an_unchanged_page_stays_live_without_new_requests(still: Watched) -> None:
    page = still.page
    wait_until(lambda: page.evaluate("window.beats") >= 3, WAIT_TIMEOUT, "beats of its member")
    assert page.locator("#live").get_attribute("data-state") == "live"
    asked = [one for one in still.requests if "/static/" not in one]
    assert asked == ["GET /jobs", "GET /live/jobs"]


def test_a_page_reports_a_frozen_member_and_reconnects_with_it(
    still: Watched, quiet: DevCluster
) -> None:
    live = still.page.locator("#live")
    quiet.pause("m1")
    try:
        expect(live).to_have_attribute("data-state", "reconnecting", timeout=SHOWN_WITHIN)
    finally:
        quiet.resume("m1")
    expect(live).to_have_attribute("data-state", "live", timeout=BACK_WITHIN)
    made = quiet.schedctl("job", "create", "newcomer", "--on-demand", "--", "true")
    assert made.returncode == 0, made.stderr
    expect(still.page.locator("#jobs")).to_contain_text("newcomer", timeout=BACK_WITHIN)


TELL_WHEN_LIVE = """
window.drawn = 0;
window.drawn_when_live = [];
window.EventSource = class extends EventSource {
  constructor(...of) {
    super(...of);
    this.addEventListener("message", () => window.drawn++);
  }
};
document.addEventListener("DOMContentLoaded", () => {
  const live = document.getElementById("live");
  new MutationObserver(() => {
    if (live.dataset.state === "live") window.drawn_when_live.push(window.drawn);
  }).observe(live, {attributes: true});
});
"""


def test_a_page_is_live_only_after_it_was_redrawn(browser: Browser, quiet: DevCluster) -> None:
    with watched(browser, f"http://{quiet.record['members'][0]['http']}") as web:
        web.page.add_init_script(TELL_WHEN_LIVE)
        wait_until_stable(web.open("/jobs"))
        assert min(web.page.evaluate("window.drawn_when_live")) > 0


def test_the_footer_names_the_member_of_the_stream(still: Watched) -> None:
    """A proxy leads it to another member when the one that served the page has died."""
    foot = still.page.locator("#served")
    expect(foot).to_have_text("Served by m1.")
    foot.evaluate("(foot) => (foot.textContent = ' Served by m9.')")  # as by the one before
    expect(foot).to_have_text("Served by m1.", timeout=SHOWN_WITHIN)
