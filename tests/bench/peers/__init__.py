"""schedd beside its peers: one command, one machine, in turns (`make bench NAME=peers`).

Each contestant runs the same no-op, which appends one line (its number, the instant of its start)
to a file of its own and does nothing else. In a round each of them in turn

    gets a store of its own (a new PostgreSQL or Redis, in a folder of its own)
    → so many jobs are put in
    → its own worker takes them, by its documented command and best settings
    → the first line in the file, to the moment its own store says that all are complete

and is gone before the next one begins. So the rate is of jobs that ran and of which the store
knows it; what was lost or ran twice is counted by the file.

    pins          what is installed, at which version: the one place
    environments  a venv or node_modules for each, in a cache outside the repository
    stores        a PostgreSQL or Redis, with what it says of its own durability
    peer          what a peer has to say, and one drain of it; a module for each peer
    ourselves     the same of schedd
    starts        the file: written by `programs`, judged here
    watching      when a drain has come to its end
    racing        the rounds, and their figures
    summary       medians and ratios
    errors        who is left out, and who failed
"""
