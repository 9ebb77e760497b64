"""Write the log of a server: one event a line on stderr, as text or as JSON for a collector.

    log.info("step", extra={...})  ->  {"time": "...", "level": "info", "logger": "env_servers.serving", "message":
                                   "step", "session": ..., ...}

A step is logged at level info, a failed one (env_error, timeout) at warning, and an exception of an environment at
error, with its traceback.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every log record has."""


def add_log_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--log-level` and `--log-format`."""
    parser.add_argument(
        "--log-level",
        choices=["info", "warning", "error"],
        default="warning",
        help="info logs every step (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        choices=["text", "json"],
        default="text",
        help="json: one object a line on stderr (default: %(default)s)",
    )


def configure(level: str, format: str) -> None:
    """Set up logging for this process. Call it once, before the server starts."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def extra_fields(record: logging.LogRecord) -> dict[str, object]:
    """Return what the caller passed as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON, in UTC and with milliseconds."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {
            "time": moment,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extra_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Text(logging.Formatter):
    """Formats a record as text followed by `name=value` for each extra field."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record with its extra fields at the end of the first line, before a traceback."""
        first_line, _, traceback = super().format(record).partition("\n")
        fields = "".join(f" {name}={value}" for name, value in extra_fields(record).items())
        return first_line + fields + (f"\n{traceback}" if traceback else "")
