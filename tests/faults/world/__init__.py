"""World of a fault run: hosts that are network namespaces, and real processes on them.

    grounds   who owns what on this machine, and the sweeping of what dead owners left
    network   hosts, wires, cuts and detours, through one hub that routes between all hosts
    service   one daemon on one host, known by its pid and birth
    etcd, postgres, daemons   how each kind is started, found ready, asked
    world     all of them together: up, ready, repaired, down

Nothing here knows what a fault is: `nemesis` does.
"""
