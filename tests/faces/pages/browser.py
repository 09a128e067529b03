"""A real Chromium, and a page in it that reports every fault.

    browser ──▶ context (size, colours) ──▶ Watched: page, and what went wrong in it

A Watched page that closes with an unexpected fault fails its test: a console error, a script
that raised, or a breach of the content security policy.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, Request, ViewportSize, sync_playwright

PROGRAM: Final = "chromium"
FLAGS: Final = ("--no-sandbox", "--disable-lcd-text", "--disable-dev-shm-usage")
"""Root has no sandbox; grey text makes small pictures."""

DESKTOP: Final[ViewportSize] = {"width": 1280, "height": 860}
PHONE: Final[ViewportSize] = {"width": 390, "height": 844}

AXE: Final = Path(__file__).parent / "axe" / "axe.min.js"
AXE_SHA256: Final = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"

_TELL_BREACHES: Final = """
window.breaches = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.breaches.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser of this machine, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which(PROGRAM), args=list(FLAGS), timeout=60_000
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page, all that it asked for, and what went wrong in it."""

    page: Page
    address: str
    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Go to a page of the site; returns when it has come."""
        self.page.goto(self.address + path)
        return self.page

    def allow(self, text: str) -> None:
        """Faults with this in them were meant."""
        self.faults = [fault for fault in self.faults if text not in fault]

    def check(self) -> None:
        """Raise unless all went well."""
        breaches: list[str] = self.page.evaluate("window.breaches ?? []")
        assert not self.faults + breaches, "\n".join(self.faults + breaches)

    def serious(self) -> list[str]:
        """Return the serious and critical violations that axe finds, each with its elements."""
        self.page.evaluate(axe())
        report: dict[str, Any] = self.page.evaluate("axe.run(document, {preload: false})")
        return [
            f"{one['id']} ({one['impact']}): {one['help']}\n  "
            + "\n  ".join(
                f"{node['html'][:160]}: {node['failureSummary']}" for node in one["nodes"]
            )
            for one in report["violations"]
            if one["impact"] in ("serious", "critical")
        ]


@contextmanager
def watched(
    browser: Browser,
    address: str,
    *,
    size: ViewportSize = DESKTOP,
    dark: bool = False,
    script: bool = True,
) -> Iterator[Watched]:
    """A page of its own, without cookies of another; checked at the end."""
    context = browser.new_context(
        viewport=size,
        color_scheme="dark" if dark else "light",
        java_script_enabled=script,
        locale="en-GB",
        timezone_id="UTC",
        ignore_https_errors=True,  # a cluster's own authority is unknown to browsers
    )
    try:
        page = context.new_page()
        page.set_default_timeout(20_000)
        found = Watched(page, address)
        page.add_init_script(_TELL_BREACHES)
        page.on("console", lambda said: _record_console(found, said.type, said.text))
        page.on("pageerror", lambda error: found.faults.append(f"raised: {error}"))
        page.on("request", lambda request: _asked(found, request))
        yield found
        if script:
            found.check()
    finally:
        context.close()


def axe() -> str:
    """The source of axe-core, if it is the one that was vendored."""
    source = AXE.read_bytes()
    assert hashlib.sha256(source).hexdigest() == AXE_SHA256, "axe.min.js isn't what was vendored"
    return source.decode()


def _record_console(found: Watched, kind: str, text: str) -> None:
    if kind == "error":
        found.faults.append(f"console: {text}")


def _asked(found: Watched, request: Request) -> None:
    found.requests.append(f"{request.method} {request.url.removeprefix(found.address)}")
