"""Dispatch: the ready queue, slots, placement and fairness. Pure."""
