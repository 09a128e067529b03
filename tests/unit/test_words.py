"""The check for banned words, by which `make lint` fails."""

from pathlib import Path

import pytest

from support.repository import ROOT, module_of

words = module_of(ROOT / "deploy" / "lint", "words")


BANNED: list[str] = words.RULES["words"]


def found_in(text: str) -> list[str]:
    return [" ".join(each.group().split()) for each in words.WORD.finditer(text)]


@pytest.mark.parametrize("word", BANNED)
def test_a_banned_word_is_found_in_prose_and_in_names(word: str) -> None:
    name = word.replace(" ", "_")
    assert found_in(f"{word.capitalize()}, the job {word}") == [word.capitalize(), word]
    assert found_in(f"as_{name} = 1") == [name]
    assert found_in(word.replace(" ", "\n  ")) == [word]


def test_each_banned_word_of_a_sentence_is_found() -> None:
    assert found_in(" was ".join(BANNED[:3])) == BANNED[:3]


def test_a_banned_word_within_another_is_no_finding() -> None:
    assert found_in("a total stolen for gold") == []


def test_a_banned_word_in_any_file_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    word = BANNED[0].capitalize()
    (tmp_path / "page.md").write_text(f"Nothing.\n\n{word} was there.\n", encoding="utf-8")
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "files", lambda: ["page.md"])
    monkeypatch.setattr(words, "wrong_titles", list)
    assert words.main() == 1
    assert capsys.readouterr().out == f"page.md:3: banned word {word!r}\n"


def test_an_allowed_phrase_is_no_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "users.py").write_text('USERS = {"root", "nobody"}\n', encoding="utf-8")
    monkeypatch.setattr(words, "ROOT", tmp_path)
    assert list(words.hits("users.py")) == []


def test_no_file_is_read_that_git_doesnt_know(tmp_path: Path) -> None:
    assert all((words.ROOT / name).is_file() for name in words.files())
