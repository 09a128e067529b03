"""Pure decisions: no I/O, no clock, no driver. Time is an argument.

`runs/model` has the values, `runs/lifecycle` the states, `schedule` the scheduled times; the other
modules decide. The loops read etcd and PostgreSQL into these values, call a decision, and execute
it.
"""
