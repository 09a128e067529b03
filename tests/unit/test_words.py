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


def test_a_folder_with_more_than_it_is_allowed_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = words.RULES["allowed"]
    folder, count = next((key, value) for key, value in counts.items() if value)
    monkeypatch.setattr("sys.argv", ["words"])
    monkeypatch.setitem(words.RULES, "allowed", {**counts, folder: 0})
    assert words.main() == 1
    assert f"{folder}: {count} banned words, 0 allowed" in capsys.readouterr().out


def test_no_file_is_read_that_git_doesnt_know(tmp_path: Path) -> None:
    assert all((words.ROOT / name).is_file() for name in words.files())
