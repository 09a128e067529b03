"""Reload of settings in a running daemon, and the log of settings that need a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from schedkit.daemon import logs
from schedkit.daemon.reload import Reload
from schedkit.errors import Misconfigured


@dataclass(frozen=True, slots=True)
class Settings:
    name: str = "w1"
    log_level: str = "info"
    log_format: logs.Format = "text"


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    root = logging.getLogger()
    held = (root.level, root.handlers[:])
    yield
    root.setLevel(held[0])
    root.handlers[:] = held[1]


def logged(
    found: list[Settings | Exception],
    capsys: pytest.CaptureFixture[str],
    running: Settings = Settings(),
    take: Callable[[Settings], frozenset[str]] = lambda _: frozenset(),
) -> list[str]:
    """Return the log of each reload, with these settings in turn."""
    rest = iter(found)

    def read() -> Settings:
        now = next(rest)
        if isinstance(now, Exception):
            raise now
        return now

    logs.configure(running.log_level, running.log_format, "schedd")
    reload = Reload(running, read, "schedd", take)
    said = []
    for _ in found:
        reload()
        said.append(capsys.readouterr().err)
    return said


def test_a_setting_that_the_daemon_applies_needs_no_restart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    renamed = Settings(name="w2")
    taken: list[Settings] = []

    def take(found: Settings) -> frozenset[str]:
        taken.append(found)
        return frozenset({"name"})

    first, second = logged([renamed, renamed], capsys, take=take)
    assert "reloaded: name" in first
    assert "restart" not in first + second
    assert "no setting has changed" in second
    assert taken == [renamed, renamed]


def test_log_settings_are_applied_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    louder = Settings(log_level="debug", log_format="json")
    [taken, again, back] = logged([louder, louder, Settings()], capsys)
    assert '"message": "reloaded: log_format, log_level"' in taken
    assert "no setting has changed" in again
    assert "INFO" in back
    assert "reloaded: log_format, log_level" in back
    assert logging.getLogger().level == logging.INFO


def test_each_reload_names_the_settings_that_need_a_restart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = Settings(name="w2")
    for said in logged([other, other], capsys):
        assert "WARNING" in said
        assert "settings apply after a restart only: name" in said
    [both] = logged([replace(other, log_level="debug")], capsys)
    assert "reloaded: log_level" in both
    assert "settings apply after a restart only: name" in both


def test_invalid_settings_are_not_applied(capsys: pytest.CaptureFixture[str]) -> None:
    [said, after] = logged([Misconfigured("slots: must be positive"), Settings()], capsys)
    assert "ERROR" in said
    assert "the settings in force are kept: slots: must be positive" in said
    assert "no setting has changed" in after


@pytest.mark.parametrize(
    ("before", "after"),
    [("debug", "warning"), ("info", "error"), ("warning", "error"), ("error", "warning")],
)
def test_a_change_to_a_quieter_level_is_logged(
    before: str, after: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [said] = logged([Settings(log_level=after)], capsys, Settings(log_level=before))
    assert "INFO" in said
    assert "reloaded: log_level" in said
    assert logging.getLogger().level == logging.getLevelName(after.upper())


def test_a_bug_in_reading_applies_nothing_and_is_logged_with_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [said, after] = logged([KeyError("ours"), Settings(log_level="debug")], capsys)
    assert "ERROR" in said
    assert "reload rejected, the settings in force are kept: a bug" in said
    assert "KeyError: 'ours'" in said
    assert "Traceback" in said
    assert "reloaded: log_level" in after


def test_all_problems_are_one_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    [said] = logged([Misconfigured("name: is empty\nslots: is 0")], capsys)
    assert said.endswith("the settings in force are kept: name: is empty; slots: is 0\n")
