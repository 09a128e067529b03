"""The check for banned words, by which `make lint` fails."""

from pathlib import Path

import pytest

from support.repository import ROOT, module_of

words = module_of(ROOT / "deploy" / "lint", "words")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Nobody was told anew", ["Nobody", "told", "anew"]),
        ("as_told = 1", ["told"]),
        ("the job goes\n  on", ["goes on"]),
        ("a total stolen for gold", []),
    ],
)
def test_a_banned_word_is_found_in_prose_and_in_names(text: str, found: list[str]) -> None:
    assert [" ".join(each.group().split()) for each in words.WORD.finditer(text)] == found


def test_a_banned_word_in_any_file_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "page.md").write_text("Nothing.\n\nNobody was there.\n", encoding="utf-8")
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "files", lambda: ["page.md"])
    monkeypatch.setattr(words, "wrong_titles", list)
    assert words.main() == 1
    assert capsys.readouterr().out == "page.md:3: banned word 'Nobody'\n"


def test_an_allowed_phrase_is_no_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "users.py").write_text('USERS = {"root", "nobody"}\n', encoding="utf-8")
    monkeypatch.setattr(words, "ROOT", tmp_path)
    assert list(words.hits("users.py")) == []


def test_no_file_is_read_that_git_doesnt_know(tmp_path: Path) -> None:
    assert all((words.ROOT / name).is_file() for name in words.files())
