"""Peers that mean harm, or know no better: what they say is bytes by a seed, over real sockets.

`http2`, `garbage`: the bytes. `calls`: every call of gRPC. `attack`: one kind of them at all ports
of a world, by `python -m faults.hostile.attack`, which `nemesis/peers.py` starts on another host.
"""
