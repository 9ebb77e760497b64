"""Importing this module warms up `symbolic`. The server that forks the workers imports it once for all of them."""

from __future__ import annotations

from .symbolic import warm

warm()
