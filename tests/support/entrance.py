"""Give the own standard streams to a process that is forked elsewhere, and end with it.

The interpreter of pytest-xdist's processes (`preloaded.py`): it imports nothing but a socket.
"""

from __future__ import annotations

import os
import socket
import sys

STREAMS = 3

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    socket.send_fds(connection, [b"streams"], range(STREAMS))
    for stream in range(STREAMS):
        os.close(stream)
    connection.recv(1)
