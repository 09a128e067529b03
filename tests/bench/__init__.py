"""Benchmarks, one module each, run by `make bench NAME=…`. Each prints JSON lines."""
