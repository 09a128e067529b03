"""What things cost: a module each, run by `make bench NAME=…`, JSON lines out."""
