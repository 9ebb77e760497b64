"""What the driver says of this machine's NVIDIA GPUs: its version, and which GPUs reach each other's memory.

nvidia-smi is asked, so that nothing heavy is imported and no GPU is initialised. A machine without it, or with a
nvidia-smi that answers otherwise, is not judged.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .gpus import gpu_count, nvidia_smi

OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""Major version of CUDA -> of the first driver that runs it (NVIDIA's table of minor-version compatibility)."""
_REACHABLE = "OK"
_GPU = re.compile(r"GPU\d+")


@dataclass(frozen=True)
class Cards:
    """What the driver says.

    Attributes:
        driver: Version of the driver, as "580.159.03"; None if it is not known.
        without_peer_access: Pairs of GPUs that cannot read each other's memory, by index.
        torch_cuda: The CUDA version that the installed torch was built with, as "13.0"; None if it has none.
    """

    driver: str | None = None
    without_peer_access: tuple[tuple[int, int], ...] = ()
    torch_cuda: str | None = None

    @property
    def needed_driver(self) -> int | None:
        """Major version of the oldest driver that runs the installed torch, if the one there is older; else None."""
        major = (self.driver or "").partition(".")[0]
        needed = OLDEST_DRIVERS.get(int((self.torch_cuda or "0").partition(".")[0]))
        return needed if needed is not None and major.isdecimal() and int(major) < needed else None


def torch_cuda() -> str | None:
    """Return the CUDA version of the installed torch without importing it; None for a CPU build."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return None
    found = re.search(r"^cuda\b.*=\s*'(\d+\.\d+)'", text, re.MULTILINE)
    return found[1] if found else None


def _ask_driver(arguments: Sequence[str]) -> str:
    """Return what nvidia-smi prints; "" if there is none, or if it fails."""
    try:
        return nvidia_smi(*arguments)
    except (OSError, subprocess.SubprocessError):
        return ""


def cards(ask: Callable[[Sequence[str]], str] = _ask_driver, gpus: int | None = None) -> Cards:
    """Return what the driver says of this machine's GPUs.

    Args:
        ask: Runs nvidia-smi with these arguments and returns its output.
        gpus: GPUs of the machine; None to count them. Without one nothing is asked.
    """
    count = gpu_count() if gpus is None else gpus
    if not count:
        return Cards()
    versions = ask(["--query-gpu=driver_version", "--format=csv,noheader"]).split()
    pairs = parse_peers(ask(["topo", "-p2p", "r"])) if count > 1 else ()
    return Cards(versions[0] if versions and versions[0][0].isdigit() else None, pairs, torch_cuda())


def parse_peers(matrix: str) -> tuple[tuple[int, int], ...]:
    """Return the pairs of GPUs without peer access, from the matrix that `nvidia-smi topo -p2p r` prints.

         GPU0  GPU1
    GPU0   X    OK
    GPU1  CNS    X

    Anything but X and OK says why a pair has none: CNS (chipset), GNS (GPU), TNS (topology), NS, DR (disabled), U.
    """
    pairs = set()
    for line in matrix.splitlines():
        name, *entries = line.split() or [""]
        if not _GPU.fullmatch(name) or not entries or _GPU.fullmatch(entries[0]):
            continue  # the heading, or the legend below
        row = int(name.removeprefix("GPU"))
        for column, entry in enumerate(entries):
            if column != row and entry not in ("X", _REACHABLE):
                pairs.add((min(row, column), max(row, column)))
    return tuple(sorted(pairs))
