"""Mirrors of the metrics: TensorBoard event files and a wandb run. Their packages are imported when a sink is made."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..config import LoggerWandb
from ..errors import ConfigError

log = logging.getLogger(__name__)

RETRY_S = 60.0
"""How long a mirror that failed is left alone."""


class Sink(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def rollback(self, step: int) -> None:
        """Steps > `step` are taken back."""

    def close(self) -> None: ...


class Mirror:
    """A sink that may fail at any time: full disk, no network, its own bugs. It is made anew after RETRY_S; `lost` rows
    are counted.

    Only the first making raises, ConfigError among it: a mirror that cannot work at all is told at start.
    """

    def __init__(self, name: str, make: Callable[[], Sink], clock: Callable[[], float] = time.monotonic):
        self.name, self.lost = name, 0
        self._make, self._clock, self._again_at = make, clock, 0.0
        self._sink: Sink | None = make()
        self._said = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.lost += not self._try(lambda sink: sink.log(step, values))

    def rollback(self, step: int) -> None:
        self._try(lambda sink: sink.rollback(step))

    def close(self) -> None:
        self._again_at = float("inf")
        self._try(lambda sink: sink.close())
        if self.lost:
            log.warning("%s lacks %d rows; metrics.jsonl is the record.", self.name, self.lost)

    def _try(self, call: Callable[[Sink], None]) -> bool:
        """Whether it went well. Exception: what a client of somebody else's service raises is not ours to list."""
        if self._sink is None and self._clock() < self._again_at:
            return False
        try:
            self._sink = self._sink or self._make()
            call(self._sink)
        except Exception as e:
            self._sink, self._again_at = None, self._clock() + RETRY_S
            if not self._said:
                log.warning(
                    "%s refuses metrics (%s: %s). Training goes on; it is tried again every %.0f s.",
                    self.name,
                    type(e).__name__,
                    e,
                    RETRY_S,
                )
            self._said = True
            return False
        self._said = False
        return True


class TensorBoardSink:
    """Scalars through tensorboard's own event writer, so that the controller needs no torch."""

    def __init__(self, directory: Path):
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as fault:
            raise ConfigError(
                f"logger.tensorboard is on, but its package is missing ({fault})."
                " Run 'pip install tensorboard' or set logger.tensorboard = false."
            ) from fault
        self._event, self._summary = event_pb2, summary_pb2
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(directory), flush_secs=10)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(
            self._event.Event(wall_time=time.time(), step=step, summary=self._summary.Summary(value=scalars))
        )

    def rollback(self, step: int) -> None:
        # A START event tells TensorBoard to hide what earlier files hold from this step on.
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step + 1, session_log=start))

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """One wandb run per run directory: its id is kept in `wandb_id`, so a resume goes on in the same run."""

    def __init__(self, run_dir: Path, cfg: LoggerWandb, config: Mapping[str, Any]):
        try:
            import wandb
        except ImportError as fault:
            raise ConfigError(
                f"logger.wandb.key is set, but wandb is missing ({fault})."
                " Run 'pip install wandb' or leave logger.wandb.key unset."
            ) from fault
        if cfg.key == "env" and not os.environ.get("WANDB_API_KEY"):
            raise ConfigError(
                "logger.wandb.key = 'env', but WANDB_API_KEY is not set. Export it, or leave logger.wandb.key unset."
            )
        if cfg.key != "env":
            wandb.login(key=cfg.key)
        self._run = wandb.init(
            dir=str(run_dir),
            project=cfg.project,
            entity=cfg.org,
            group=cfg.group,
            name=cfg.run_name or run_dir.name,
            id=_run_id(run_dir),
            resume="allow",
            config=dict(config),
        )
        # wandb's own step can never go back, a resumed run does: our step is a column that the charts use as x.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def rollback(self, step: int) -> None:
        self._run.summary["rolled_back_to"] = step

    def close(self) -> None:
        self._run.finish()


def _run_id(run_dir: Path) -> str:
    path = run_dir / "wandb_id"
    if not path.exists():
        run_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex[:12])
    return path.read_text().strip()
