"""Call a member with random tokens, CONCURRENT calls at a time, until stdin ends.

    python -m support.token_flood ADDRESS CA_FILE CONCURRENT

Prints the number of calls by status code at the end, as one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from schedd.core.auth.rights import text_of
from schedd.core.ids import AccessTokenId, new_id

METHOD = "/schedd.v1.AuthService/GetIdentity"
OF_CHANNEL = 200
"""Concurrent calls of one connection."""


def random_token() -> str:
    return text_of(AccessTokenId(new_id()), secrets.token_bytes(32))[0]


async def flood(address: str, ca: bytes, concurrent: int) -> Counter[str]:
    credentials = grpc.ssl_channel_credentials(ca)
    codes: Counter[str] = Counter()

    async def caller(channel: grpc.aio.Channel) -> None:
        call: Any = channel.unary_unary(METHOD)
        while True:
            metadata = (("authorization", f"Bearer {random_token()}"),)
            try:
                await call(b"", metadata=metadata, timeout=30)
            except grpc.aio.AioRpcError as error:
                codes[error.code().name] += 1

    channels = [
        grpc.aio.secure_channel(
            address, credentials, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        for _ in range(-(-concurrent // OF_CHANNEL))
    ]
    callers = [
        asyncio.create_task(caller(channels[number % len(channels)]))
        for number in range(concurrent)
    ]
    await asyncio.to_thread(sys.stdin.read)
    for each in callers:
        each.cancel()
    await asyncio.wait(callers)
    return codes


if __name__ == "__main__":
    certificates = Path(sys.argv[2]).read_bytes()
    print(json.dumps(asyncio.run(flood(sys.argv[1], certificates, int(sys.argv[3])))))
