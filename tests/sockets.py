"""The sockets on which processes of this machine listen, as Linux tells them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path


def processes_of(session: str, roots: Collection[int]) -> dict[int, str]:
    """Names of these processes, of those whose command names the session of a cluster, and of all their descendants."""
    names, parents, found = {}, {}, set(roots)
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            pid, (before, _, after) = int(folder.name), (folder / "stat").read_text().rpartition(")")
            names[pid], parents[pid] = before.partition("(")[2], int(after.split()[1])
            if session and session.encode() in (folder / "cmdline").read_bytes():
                found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: names[pid] for pid in found if pid in names}


def listening(names: Mapping[int, str]) -> list[tuple[str, IPv4Address | IPv6Address]]:
    """(name, address) of each socket on which one of these processes listens."""
    owners, addresses = {}, []
    for pid, name in names.items():
        with suppress(FileNotFoundError, ProcessLookupError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile
                    owners[os.readlink(link)] = name
    for table in filter(Path.exists, (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))):
        for line in table.read_text().splitlines()[1:]:
            columns = line.split()
            name = owners.get(f"socket:[{columns[9]}]", "")
            if columns[3] == "0A" and name:
                addresses.append((name, address_of(columns[1])))
    return addresses


def address_of(entry: str) -> IPv4Address | IPv6Address:
    """Of /proc/net: words of four bytes in this machine's order, and a port."""
    words = [int(word, 16).to_bytes(4, sys.byteorder) for word in re.findall("[0-9A-F]{8}", entry.partition(":")[0])]
    address = ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address
