"""Tell a wrong name from a broken network by the causes of an error that the hub's libraries raise."""

from __future__ import annotations

import os
import socket

from ..errors import ConfigError, Unavailable

NETWORK = (ConnectionError, TimeoutError, socket.gaierror)
"""Errors of a broken or missing connection."""
OFFLINE = "OfflineModeIsEnabled"
"""huggingface_hub's error (a ConnectionError) if HF_HUB_OFFLINE is set and files are not cached. Waiting does not
help."""
MOST_CAUSES = 20
"""Causes of an error that are examined."""
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
TRUE = ("1", "ON", "YES", "TRUE")


def offline_by() -> str | None:
    """Return the environment variable that keeps the hub's libraries offline; None while they may ask the hub."""
    return next((name for name in OFFLINE_VARIABLES if os.environ.get(name, "").upper() in TRUE), None)


def is_cached(model: str, file: str = "config.json") -> bool:
    """Return True if the hub's cache on this machine has a file of a model, by default its configuration."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(model, file), str)
    except HFValidationError:
        return False


def fault_of(error: BaseException) -> type[ConfigError] | type[Unavailable]:
    """Return Unavailable if a broken or missing connection is among the causes of an error.

    Otherwise return ConfigError: the name is wrong, or access is denied.
    """
    kind: type[ConfigError] | type[Unavailable] = ConfigError
    cause: BaseException | None = error
    for _ in range(MOST_CAUSES):
        if cause is None:
            break
        if type(cause).__name__ == OFFLINE:
            return ConfigError
        if isinstance(cause, NETWORK):
            kind = Unavailable
        cause = cause.__cause__ or cause.__context__
    return kind
