"""Mutants: builds of the product with one promise taken out, each to be caught by the checker.

    ../.venv/bin/python -m faults.mutants [NAME…]      from the folder `tests`; `make mutants`

    mutant ─edits→ a copy of the tree ─its daemons→ a trial in a world ─history→ checker ─→ verdict
                   a copy without     ─its daemons→ the same trial     ─history→ checker ─→ ok, or
                                                                             nothing is proved

A mutant that isn't caught by the invariant it names fails the command, and so does a trial that the
product as it is doesn't pass.

What one guard lets through another often stops. Where a promise has more guards than one, a trial's
`setting` takes the others out, for the product and the mutant alike: then the one that is left is
seen to be enough, and without it the checker sees the promise broken.
"""
