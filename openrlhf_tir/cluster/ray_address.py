"""Check whether a cluster answers at RAY_ADDRESS, before Ray itself tries.

`ray.init` tries for twelve minutes, in C++ where no signal is handled, and ends with a traceback. This check takes
seconds, and a signal interrupts it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from ..errors import ConfigError, Unavailable

CONNECT_S = 5.0
"""Deadline for the port to accept a connection, in seconds."""
ANSWER_S = 10.0
"""Deadline for the process behind it to speak gRPC, in seconds. Ray's head does at once unless it hangs."""
BY_RAY_ITSELF = ("auto", "local")
"""Addresses that name no host: Ray looks `auto` up in files of this machine, at once."""
REMEDY = (
    "Start it (ray start --head, on the head), correct RAY_ADDRESS, or unset it to start a Ray on this machine alone"
)


def check_ray_address(
    environ: Mapping[str, str] = os.environ, *, connect_s: float = CONNECT_S, answer_s: float = ANSWER_S
) -> None:
    """Return if a Ray cluster may be at RAY_ADDRESS, or if the variable is unset.

    Raises:
        ConfigError: It is not an address.
        Unavailable: Nothing answers there, or not as Ray does. It may still come up.
    """
    address = environ.get("RAY_ADDRESS", "")
    if not address or address in BY_RAY_ITSELF:
        return
    host, port = _host_and_port(address)
    try:
        socket.create_connection((host, port), connect_s).close()
    except OSError as error:
        fault = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise Unavailable(f"No Ray cluster answers at RAY_ADDRESS = {address!r}: {fault}. {REMEDY}.") from None
    # With TLS only Ray's own client has the certificates.
    if environ.get("RAY_USE_TLS", "0") in ("", "0") and not _speaks_grpc(host, port, answer_s):
        raise Unavailable(
            f"Something listens at RAY_ADDRESS = {address!r} and did not answer as Ray's head does within"
            f" {answer_s:g} s: it hangs, or is another program. {REMEDY}."
        )


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if "://" in host or not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"RAY_ADDRESS = {address!r} is not the address of a Ray cluster. Give HOST:PORT of its head, such as"
            " 10.0.0.1:6379, or auto."
        )
    return host.strip("[]"), int(port)


def _speaks_grpc(host: str, port: int, within_s: float) -> bool:
    import grpc

    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with grpc.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=within_s)
        except grpc.FutureTimeoutError:
            return False
    return True
