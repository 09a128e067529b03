"""N-1 comes from the repository's history, or is said to be missing."""

from pathlib import Path

import pytest

from support import version_before


def test_a_history_without_the_previous_version_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_before, "BEFORE", "0" * 40)

    with pytest.raises(version_before.NoSuchVersion, match="git fetch --unshallow"):
        version_before.lay(tmp_path)


def test_an_interpreter_that_finds_another_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(version_before.NoSuchVersion, match="isn't what"):
        version_before._assert_only(version_before.HERE, tmp_path)
