"""A run that writes more than a page can show, while it is watched: in a real browser."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from faces.pages.browser import Watched
from support.cluster import DevCluster

SLOW = 120_000
"""Milliseconds until all of it is shown, on a busy machine."""
LONGEST_STALL = 5_000
"""Milliseconds that a page may not answer; two thirds of a minute, where each piece is drawn."""

CHATTY = "for n in $(seq 1 20); do seq 1 20000; sleep 0.1; done; echo oops >&2"
"""Two megabytes in two seconds."""
KEPT = 1 << 20
"""Characters that a page keeps of a log."""
EARLIER = "earlier output omitted: see the whole log with `schedctl run logs`\n"
"""First text of a log that a page keeps only in part."""

TELL_STALLS = """
window.longest = 0;
let before = performance.now();
setInterval(() => {
  const now = performance.now();
  window.longest = Math.max(window.longest, now - before);
  before = now;
}, 50);
"""

DRAW_NOTHING = """
window.frames_asked_for = [];
window.requestAnimationFrame = (draw) => window.frames_asked_for.push(draw);
"""
"""As in a tab that isn't seen."""


def triggered(cluster: DevCluster, name: str) -> str:
    """A run of a job that writes a lot."""
    made = cluster.schedctl("job", "create", name, "--on-demand", "--", "sh", "-c", CHATTY)
    assert made.returncode == 0, made.stderr
    return str(cluster.json("job", "trigger", name)["runId"])


def at_its_end(page: Page) -> bool:
    """Whether the log shows its last line."""
    return bool(
        page.locator("#log-text").evaluate(
            "(log) => log.scrollTop + log.clientHeight >= log.scrollHeight - 30"
        )
    )


def test_a_page_answers_while_its_run_writes_megabytes_and_shows_the_newest_of_it(
    web: Watched, cluster: DevCluster
) -> None:
    web.page.add_init_script(TELL_STALLS)
    page = web.open(f"/runs/{triggered(cluster, 'chatty')}")
    log = page.locator("#log-text")
    expect(log.locator(".err")).to_have_text("oops\n", timeout=SLOW)
    expect(page.locator("#log-state")).to_have_text("ended", timeout=SLOW)
    longest = page.evaluate("window.longest")  # before anything here holds it up
    text = str(log.text_content())
    assert text.splitlines().count("20000") > 5
    assert len(text) < KEPT + (1 << 18)
    assert text.startswith((EARLIER, "1\n2\n3\n"))  # a part of it is left out on its way
    assert text.count(EARLIER) <= 1
    assert at_its_end(page)
    assert longest < LONGEST_STALL


def test_a_hidden_tab_keeps_no_more_of_a_log_than_a_visible_tab(
    web: Watched, cluster: DevCluster
) -> None:
    web.page.add_init_script(DRAW_NOTHING)
    page = web.open(f"/runs/{triggered(cluster, 'unseen')}")
    expect(page.locator("#log-state")).to_have_text("ended", timeout=SLOW)
    assert page.evaluate("window.frames_asked_for.length") == 1
    page.evaluate("window.frames_asked_for[0]()")  # the tab is visible again
    text = str(page.locator("#log-text").text_content())
    assert "oops" in text.splitlines()[-3:]
    assert text.startswith(EARLIER)
    assert KEPT <= len(text) < KEPT + (1 << 18)
