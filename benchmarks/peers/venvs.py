"""Venvs: a peer's requirements -> an interpreter of a venv that has them, made once. Skipped where pip cannot."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import zlib
from pathlib import Path

INSTALL_S = 900.0
"""torch alone is 200 MB."""
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DONE = "complete"


class Skipped(Exception):
    """A system cannot run here; the message is the sentence that stands in its place."""


def same_as_ours(*names: str) -> tuple[str, ...]:
    """Requirements at versions of this environment: what peers are compared on they share, pip's cache has it."""
    return tuple(f"{name}=={importlib.metadata.version(name)}" for name in names)


def interpreter(venvs: Path, name: str, requirements: tuple[str, ...]) -> Path:
    """python of `venvs/name-HASH`. Raises Skipped with pip's last words."""
    home = (venvs / f"{name}-{zlib.crc32(' '.join(requirements).encode()):08x}").resolve()
    python = home / "bin" / "python"
    if (home / DONE).exists():
        return python
    home.parent.mkdir(parents=True, exist_ok=True)
    _said(name, [sys.executable, "-m", "venv", "--clear", str(home)])
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-compile", "--progress-bar", "off"]
    for torch in (r.split("+")[0] for r in requirements if r.startswith("torch==")):
        report = _said(name, [*pip, "--quiet", "--dry-run", "--no-deps", "--ignore-installed", "--report", "-", torch])
        index = [] if is_cpu_build(report) else ["--index-url", TORCH_CPU_INDEX]
        _said(name, [*pip, "--no-deps", *index, torch])
    _said(name, [*pip, *(r.split("+")[0] for r in requirements)])
    (home / DONE).write_text("\n".join(requirements))
    return python


def is_cpu_build(report: str) -> bool:
    """Whether what pip would install for torch's plain version is one: some indexes have CPU builds there, PyPI has
    CUDA's, with 3 GB of libraries."""
    (found,) = json.loads(report)["install"]
    return not any("nvidia" in r or "cuda" in r for r in found["metadata"].get("requires_dist", []))


def _said(name: str, words: list[str]) -> str:
    """What the command prints. Raises Skipped with the last line of one that fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        raise Skipped(f"{name} was not installed within {INSTALL_S:g} s.") from None
    if done.returncode:
        last = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()][-1:] or ["no output"]
        raise Skipped(f"{name} cannot be installed here: {last[0]}")
    return done.stdout
