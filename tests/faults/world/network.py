"""Hosts that are network namespaces, and everything that can happen between them.

                 ┌─────────────── hub: a router ───────────────┐
      root ──────┤  ip rule from A to B blackhole      (a cut)  ├────── m1
    (the test)   │  ip rule from A to B lookup T    (a detour)  ├────── pg …
                 └──────────────────────────────────────────────┘

- Each host hangs on a wire of its own, so every packet between two hosts passes the hub's rules.
- A cut has a direction, and drops in silence, as a broken network does: no side is notified. It is
  ended, never healed in part.
- Each host has two addresses: its own, which the others know, and a back door. A detour leads what
  A sends to B's own address to a third host that has this address too; a proxy there forwards to
  B by the back door. Sessions that were open are reset at the detour's begin and at its end.
- Sockets are opened inside a namespace by a thread that enters it and ends: no helper process.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from faults.world.grounds import Grounds, run

CLONE_NEWNET = 0x40000000
BACK_DOOR = 100
"""Added to a host's number: its second address."""
ROOT, GATEWAY = 250, 1


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace. `number`: last part of its address."""

    name: str
    number: int
    namespace: str
    address: str
    back_door: str

    def enter(self) -> list[str]:
        """Return what to put before a command that runs there; it execs, so the pid stays."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "--"]

    def socket(self, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
        """A new socket that lives on this host."""
        opened: list[socket.socket] = []

        def inside() -> None:
            with Path(f"/run/netns/{self.namespace}").open("rb") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"can't enter {self.namespace}")
            opened.append(socket.socket(socket.AF_INET, kind))

        thread = threading.Thread(target=inside, name=f"enter {self.name}")
        thread.start()
        thread.join()
        return opened[0]


@dataclass(slots=True)
class Network:
    """All hosts and the hub between them; `lay` makes it, `grounds.release` takes it away."""

    grounds: Grounds
    hosts: dict[str, Host] = field(default_factory=dict)

    @property
    def hub(self) -> str:
        """The router's namespace."""
        return f"{self.grounds.key}-hub"

    def lay(self) -> None:
        """Make the hub, and the wire by which the test itself talks to the hosts."""
        run("ip", "netns", "add", self.hub)
        settings = ["net.ipv4.ip_forward=1"]
        settings += [f"net.ipv4.conf.{which}.rp_filter=0" for which in ("all", "default")]
        self._in_hub("sysctl", "-qw", *settings)
        run("ip", "-n", self.hub, "link", "set", "lo", "up")
        wire = f"{self.grounds.key}-root"
        run("ip", "link", "add", wire, "type", "veth", "peer", "name", "root", "netns", self.hub)
        run("ip", "addr", "add", f"{self.grounds.address(ROOT)}/32", "dev", wire)
        run("ip", "link", "set", wire, "up")
        gateway, subnet = self.grounds.address(GATEWAY), f"{self.grounds.address(0)}/24"
        run("ip", "route", "add", gateway, "dev", wire)
        source = self.grounds.address(ROOT)
        run("ip", "route", "add", subnet, "via", gateway, "dev", wire, "src", source)
        self._attach("root", [source])

    def add(self, name: str) -> Host:
        """A new host on a wire of its own."""
        number = 11 + len(self.hosts)
        namespace = f"{self.grounds.key}-{name}"
        address, back = (self.grounds.address(n) for n in (number, number + BACK_DOOR))
        host = self.hosts[name] = Host(name, number, namespace, address, back)
        run("ip", "netns", "add", namespace)
        ends = ["type", "veth", "peer", "name", "eth0", "netns", namespace]
        run("ip", "-n", self.hub, "link", "add", name, *ends)
        run("ip", "-n", namespace, "link", "set", "lo", "up")
        for each in (address, back):
            run("ip", "-n", namespace, "addr", "add", f"{each}/32", "dev", "eth0")
        run("ip", "-n", namespace, "link", "set", "eth0", "up")
        gateway = self.grounds.address(GATEWAY)
        run("ip", "-n", namespace, "route", "add", gateway, "dev", "eth0", "src", address)
        run("ip", "-n", namespace, "route", "add", "default", "via", gateway, "src", address)
        self._attach(name, [address, back])
        return host

    def cut(self, source: Host, target: Host) -> None:
        """From now on nothing that `source` sends reaches `target`."""
        self._cut_rules("add", source, target)

    def reconnect(self, source: Host, target: Host) -> None:
        """End that cut."""
        self._cut_rules("del", source, target)

    def add_address(self, target: Host, over: Host) -> None:
        """Give the host `over` `target`'s own address too, for what a detour leads there."""
        run("ip", "-n", over.namespace, "addr", "add", f"{target.address}/32", "dev", "lo")

    def forget(self, target: Host, over: Host) -> None:
        """End that."""
        run("ip", "-n", over.namespace, "addr", "del", f"{target.address}/32", "dev", "lo")

    def detour(self, source: Host, target: Host, over: Host) -> None:
        """Route packets from `source` to `target`'s own address by `over`, which has it too."""
        table = str(1000 + over.number)
        self._ip("route", "replace", "default", "dev", over.name, "table", table)
        self._ip("rule", "add", *self._between(source, target), "lookup", table)

    def straighten(self, source: Host, target: Host, over: Host) -> None:
        """End that detour."""
        table = str(1000 + over.number)
        self._ip("rule", "del", *self._between(source, target), "lookup", table)

    def abort(self, source: Host, target: Host) -> None:
        """End every TCP connection that `source` has to `target`'s own address, now."""
        run(*source.enter(), "ss", "-KH", "dst", target.address)

    def rules(self) -> list[str]:
        """The hub's rules that no plain router has: what is cut or led astray now."""
        lines = run("ip", "-n", self.hub, "rule", "list").splitlines()
        return [line for line in lines if line.split()[1] == "from" and " to " in line]

    def passes(self, source: Host, target: Host, timeout: float = 0.3) -> bool:
        """Whether a datagram from one host reaches the other: what a cut is verified by."""
        with ExitStack() as opened:
            sender = opened.enter_context(source.socket(socket.SOCK_DGRAM))
            receiver = opened.enter_context(target.socket(socket.SOCK_DGRAM))
            sender.bind((source.address, 0))
            receiver.bind((target.address, 0))
            receiver.settimeout(timeout)
            mark = os.urandom(8)
            sender.sendto(mark, receiver.getsockname())
            try:
                return receiver.recv(64) == mark
            except TimeoutError:
                return False

    @contextmanager
    def severed(self, source: Host, target: Host) -> Iterator[None]:
        """A cut for the length of a block."""
        self.cut(source, target)
        try:
            yield
        finally:
            self.reconnect(source, target)

    def _cut_rules(self, act: str, source: Host, target: Host) -> None:
        for address in (target.address, target.back_door):
            self._ip("rule", act, "from", source.address, "to", address, "blackhole")
            self._ip("rule", act, "from", source.back_door, "to", address, "blackhole")

    @staticmethod
    def _between(source: Host, target: Host) -> list[str]:
        return ["from", source.address, "to", target.address]

    def _attach(self, wire: str, addresses: list[str]) -> None:
        self._ip("addr", "add", f"{self.grounds.address(GATEWAY)}/32", "dev", wire)
        self._ip("link", "set", wire, "up")
        for address in addresses:
            self._ip("route", "add", address, "dev", wire)

    def _ip(self, *words: str) -> None:
        run("ip", "-n", self.hub, *words)

    def _in_hub(self, *argv: str) -> None:
        run("nsenter", f"--net=/run/netns/{self.hub}", "--", *argv)
