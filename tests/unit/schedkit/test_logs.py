"""Log lines in text format and in JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from schedkit.daemon import logs


@pytest.fixture(autouse=True)
def _root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def test_a_json_line_has_its_extras_as_keys(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json", "schedd")
    logging.getLogger("schedd.owner").info("took %d shards", 12, extra={"shards": 12})
    line = json.loads(capsys.readouterr().err)
    assert line.pop("at").endswith("Z")
    assert line == {
        "level": "info",
        "service": "schedd",
        "logger": "schedd.owner",
        "message": "took 12 shards",
        "shards": 12,
    }


def test_an_extra_never_hides_a_key_of_the_line_itself(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json", "schedd")
    logging.getLogger("a").warning("here", extra={"level": "fake", "service": "fake"})
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["service"]) == ("warning", "schedd")


def test_values_that_json_lacks_are_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json", "schedd")
    logging.getLogger("a").info("x", extra={"error": ValueError("no")})
    assert json.loads(capsys.readouterr().err)["error"] == "no"


def test_a_fault_in_json_is_still_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json", "schedd")
    try:
        raise ZeroDivisionError("a\nb")
    except ZeroDivisionError:
        logging.getLogger("a").exception("broken")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ZeroDivisionError" in json.loads(line)["traceback"]


def test_a_text_line_is_one_line_with_extras_at_its_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("INFO", "text", "schedd")
    logging.getLogger("schedd").info("took\n12", extra={"shards": 12, "why": "two words"})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith('INFO    schedd: took\\n12 shards=12 why="two words"')


def test_lines_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning", "text", "schedd")
    logging.getLogger("a").info("quiet")
    assert capsys.readouterr().err == ""


def test_configuring_twice_writes_each_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text", "schedd")
    logs.configure("info", "json", "schedd")
    logging.getLogger("a").info("once")
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(("level", "fmt"), [("loud", "json"), ("info", "xml")])
def test_an_unknown_level_or_format_is_refused(level: str, fmt: logs.Format) -> None:
    with pytest.raises(ValueError, match=r"LOUD|xml"):
        logs.configure(level, fmt, "schedd")


def test_debug_lines_of_libraries_are_not_logged(capsys: pytest.CaptureFixture[str]):
    logs.configure("debug", "text", "schedd")
    logging.getLogger("alembic.runtime.migration").info("Context impl")
    logging.getLogger("uvicorn.error").warning("this matters")
    lines = capsys.readouterr().err
    assert "Context impl" not in lines
    assert "this matters" in lines
