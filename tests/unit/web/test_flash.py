"""The flash message of a page whose forms did more than one thing."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from schedd.web.pages.site import MOST_DRAWINGS, MOST_THINGS, Flash, RecentFlashes, read_flash
from schedd.web.templating import ONCE

ONE = {ONCE: "0123"}


def test_the_last_answer_to_a_page_view_shows_all_its_actions() -> None:
    lately = RecentFlashes()
    assert lately.record("ann", ONE, "a ran.") == Flash("a ran.", "0123")
    assert lately.record("ann", ONE, "b ran.") == Flash("a ran. b ran.", "0123")
    assert lately.record("ann", ONE, "b ran.").words == "a ran. b ran.", (
        "the same twice, shown once"
    )


@pytest.mark.parametrize("other", [("bob", ONE), ("ann", {ONCE: "4567"}), ("ann", {})])
def test_actions_of_another_page_view_arent_shown(other: tuple[str, dict[str, str]]) -> None:
    lately = RecentFlashes()
    lately.record("ann", ONE, "a ran.")
    assert lately.record(*other, "b ran.").words == "b ran."


def test_neither_memory_nor_a_message_grows_without_limit() -> None:
    lately = RecentFlashes()
    for at in range(MOST_DRAWINGS):
        lately.record("ann", {ONCE: f"{at}"}, "it ran.")
    lately.record("ann", ONE, "0.")
    assert lately.record("ann", {ONCE: "0"}, "again.").words == "again."
    for at in range(1, 2 * MOST_THINGS):
        flash = lately.record("ann", ONE, f"{at}.")
    assert len(flash.words.split()) == MOST_THINGS
    assert lately.record("ann", {ONCE: "x" * 1000}, "it ran.") == Flash("it ran.", "")


@pytest.mark.parametrize("cookie", ["", "{", '"text"', "[1, 2]", '["a"]', '["", "x"]', "[" * 9_999])
def test_a_cookie_of_another_page_view_shows_nothing(cookie: str) -> None:
    assert read_flash(quote(cookie)) is None
    assert read_flash(quote(json.dumps(["a ran.", "0"]))) == Flash("a ran.", "0")
