"""Faults for a world, each as a context manager that proves that it took effect.

    with stopped(journal, world.members["m2"]):
        …                       # the process was seen in state T, and that is in the history

`journal` numbers faults and writes them down; the other modules hold the faults, by what they hit.
A fault whose effect isn't seen raises `NoEffect`: a run whose nemesis did nothing proves nothing.
Leaving the block undoes the fault, whatever happened inside, and proves that too.
"""
