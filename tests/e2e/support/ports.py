"""A port for a process group of a test's own."""

from __future__ import annotations

from openrlhf_tir.weights.rendezvous import served_store

STORES = []


def store_port() -> int:
    """Where the group's store listens until this process ends."""
    STORES.append(served_store("127.0.0.1"))
    return STORES[-1].port
