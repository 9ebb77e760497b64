"""The package bfcl-eval: where its data are, and which part of it is needed.

Its classes import with mpmath alone, so `pip install --no-deps` is enough.
"""

from __future__ import annotations

from pathlib import Path

from env_servers.adapters.packages import required
from openrlhf_tir.data.bfcl.functions import DIRECTORY, Schema, read_functions

ANSWERS = "possible_answer"
INSTALL = "pip install --no-deps bfcl-eval==2026.3.23 && pip install mpmath"
"""The package's own requirements (torch, faiss, a dozen vendors' clients, older numpy and tree-sitter) are for its own
driver."""


def data_directory() -> Path:
    """Return the directory of the package's data. Exits with what to install if it, or mpmath, is missing."""
    required("mpmath", "bfcl", INSTALL)
    package = required("bfcl_eval", "bfcl", INSTALL)
    return Path(package.__path__[0]) / "data"


def functions() -> dict[str, list[Schema]]:
    """Return schemas by class. Raises DataError for a package of another layout."""
    return read_functions(data_directory() / DIRECTORY)
