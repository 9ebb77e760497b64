"""A workload of these benchmarks, beside the seed workload that ships with the package."""

from __future__ import annotations

from pathlib import Path

TOOLS_WORKLOAD = Path(__file__).with_name("workload_tools.toml")
"""A workload with five slow tools and responses of up to 16k tokens."""
