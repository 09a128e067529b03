"""Rows of live runs: assign, overlap, pools, broadcasts."""
