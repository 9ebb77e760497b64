"""Conformance check: URL of an environment server -> does it keep the protocol? One Finding per promise.

    probe (schema, health) -> actions of that environment -> every check of CHECKS, one after another -> [Finding]

A check asks over plain HTTP, as any client could, so it judges servers not written with `env_servers` as well."""

from __future__ import annotations

from .kit import Finding, Kit, Options
from .run import check_server

__all__ = ["Finding", "Kit", "Options", "check_server"]
