"""Processes of jobs: spawn, cgroups, keeper, supervision."""
