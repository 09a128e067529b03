"""Peers that mean harm, or know no better: what they say is bytes by a seed, over real sockets.

`http1`, `http2`, `garbage`: the bytes. `calls`: every call of gRPC. `messages`: deeds made of them.
`held`: connections that are kept, and what becomes of them; `connections`: what those say.
`order`: orders for an attacker, and its reports. `attack`: one kind of all that at all ports of a
world, by `python -m faults.hostile.attack`, which `nemesis/peers.py` starts on another host.
"""
