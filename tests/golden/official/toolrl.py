"""ToolRL's handler for BFCL: its calls as source."""

from __future__ import annotations

from openrlhf_tir.rewards.checking.call_text import json_calls


def call_sources(text: str) -> list[str]:
    """`json_calls` as Python source, for execution against a simulated API; without parameters where there are none."""
    calls = [(c["name"], c.get("parameters")) for c in json_calls(text)]
    return [
        f"{name}({', '.join(f'{k}={v!r}' for k, v in (p if isinstance(p, dict) else {}).items())})" for name, p in calls
    ]
