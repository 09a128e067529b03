"""Mutants stay what they say they are, whatever becomes of the code around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.checker import INVARIANTS
from faults.mutants.catalogue import MUTANTS
from faults.mutants.edits import ROOT, DoesNotApply, Edit, Tree, edited
from faults.mutants.mutant import Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_edit_changes_its_file_and_the_file_still_compiles(mutant: Mutant) -> None:
    for file, text in edited((*mutant.trial.setting, *mutant.edits)).items():
        assert text != (ROOT / file).read_text(encoding="utf-8")
        compile(text, file, "exec")


def test_each_mutant_names_an_invariant_that_the_checker_judges() -> None:
    assert {mutant.caught_by for mutant in MUTANTS} <= {each.name for each in INVARIANTS}


def test_no_two_mutants_or_rides_share_a_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 12
    trials = {id(mutant.trial): mutant.trial.name for mutant in MUTANTS}
    assert len(set(trials.values())) == len(trials)


def test_an_edit_with_missing_or_ambiguous_text_is_rejected() -> None:
    with pytest.raises(DoesNotApply, match="0 times"):
        Edit("a.py", "gone", "").made("text")
    with pytest.raises(DoesNotApply, match="2 times"):
        Edit("a.py", "x", "y").made("x x")


def test_daemons_run_the_edited_copy_and_not_the_installed_package(tmp_path: Path) -> None:
    tree = Tree(tmp_path, MUTANTS[0].edits)
    tree.prove()
    file = MUTANTS[0].edits[0].file
    assert (tmp_path / file).read_text() == edited(MUTANTS[0].edits)[file]
