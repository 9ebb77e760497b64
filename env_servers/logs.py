"""Logs: what a server says while it runs, one event a line on stderr, as text or as JSON for a collector.

    log.info("step", extra={...})  ->  {"time": "...", "level": "info", "logger": "env_servers.serving", "message":
                                   "step", "session": ..., ...}

Every step is logged at level info, failed ones (env_error, timeout) at warning, and what an environment raises at
error, with its traceback."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def add_log_flags(parser: argparse.ArgumentParser) -> None:
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
    """Sets up logging for this process; called once, before it serves."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def facts(record: logging.LogRecord) -> dict[str, object]:
    """Returns what the record's `extra` has added."""
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {
            "time": moment,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **facts(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        text, _, rest = super().format(record).partition("\n")
        return (
            text + "".join(f" {name}={value}" for name, value in facts(record).items()) + (f"\n{rest}" if rest else "")
        )
