"""The log of this package in a worker process, in a file of the run and on stderr."""

from __future__ import annotations

import logging
from pathlib import Path

PACKAGE = "openrlhf_tir"
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def own_log(path: Path) -> None:
    """Send this package's records from INFO on to `path`, and those from WARNING on to stderr. A second call replaces
    the file.

    The package's logger gets handlers of its own, because importing vLLM sets the root logger to ERROR, which would
    silence every warning that is left to it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger(PACKAGE)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    to_stderr = logging.StreamHandler()
    to_stderr.setLevel(logging.WARNING)
    for handler in (logging.FileHandler(path, encoding="utf-8", delay=True), to_stderr):
        handler.setFormatter(logging.Formatter(FORMAT))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
