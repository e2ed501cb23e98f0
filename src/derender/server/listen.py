"""The sockets that a server listens on: an address, or a path of the file system."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path


class ListenError(Exception):
    """The address cannot be listened on; the message is one clear line."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where to listen: `host` and `port` (0: any free one), or `uds`, a path of a Unix socket, which goes first."""

    host: str = "0.0.0.0"
    port: int = 8000
    uds: str | None = None


def bind(address: Address, *, shared: bool = False) -> socket.socket:
    """A bound socket that does not listen yet. Raises `ListenError`.

    `shared`: other processes will bind the same port (SO_REUSEPORT), and the kernel spreads connections over those
    that listen. One listening socket for all would give most of them to the worker that wakes first.
    """
    if address.uds is not None:
        return _bind_path(address.uds)
    try:
        found = socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"cannot resolve host {address.host!r}: {error}") from None
    family, kind, protocol, _, place = sorted(found, key=lambda one: one[0] != socket.AF_INET)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(place)
    except OSError as error:
        sock.close()
        raise ListenError(f"cannot listen on {address.host}:{address.port}: {error.strerror}") from None
    sock.set_inheritable(True)
    return sock


def check_free(address: Address) -> None:
    """Raises `ListenError` where another server listens, which a shared port would hide."""
    if address.uds is None and address.port:
        bind(address).close()


def _bind_path(path: str) -> socket.socket:
    """A socket at `path`; a socket file that nobody listens on is replaced."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.stat(path).st_mode) and not _answers(path):
                os.unlink(path)
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise ListenError(f"cannot listen on {path}: {error.strerror or error}") from None
    sock.set_inheritable(True)
    return sock


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
    return True


def release(address: Address) -> None:
    """Removes the file of a Unix socket."""
    if address.uds is not None:
        Path(address.uds).unlink(missing_ok=True)


def describe(address: Address, sock: socket.socket, *, tls: bool) -> str:
    """The address as a URL, with the port that was really bound."""
    if address.uds is not None:
        return f"unix:{address.uds}"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{'https' if tls else 'http'}://{host}:{sock.getsockname()[1]}"
