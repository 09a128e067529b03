"""The pure heart: decisions without I/O, clock or driver. Time is an argument.

`model` holds the values, `lifecycle` the states, `cron` and `schedule` the instants, `catch_up`,
`retry` and `partition` the decisions. The loops read the world into these values, ask here what
is to be done, and do it.
"""
