"""Venvs: a peer's requirements -> an interpreter of a venv of its own that has them, made once. Skipped where pip cannot."""

from __future__ import annotations

import importlib.metadata
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
    """Requirements at the versions of this environment: what peers are compared on, they share, and pip's cache has it."""
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
    # A local version, as 2.13.0+cpu, is on PyTorch's own index; an index that has CPU builds under the plain name is asked first, as always.
    torch = [r for r in requirements if r.startswith("torch==")]
    plain = [r.split("+")[0] for r in torch]
    _said(name, [*pip, "--extra-index-url", TORCH_CPU_INDEX, *(r for r in requirements if r not in torch), *plain])
    (home / DONE).write_text("\n".join(requirements))
    return python


def _said(name: str, words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        raise Skipped(f"{name} was not installed within {INSTALL_S:g} s.") from None
    if done.returncode:
        last = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()][-1:] or ["no output"]
        raise Skipped(f"{name} cannot be installed here: {last[0]}")
