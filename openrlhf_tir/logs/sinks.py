"""Mirrors of the metrics: TensorBoard event files and a wandb run. Their packages are imported when a sink is made."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..config import LoggerWandb
from ..errors import ConfigError


class Sink(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def rollback(self, step: int) -> None:
        """Steps > `step` are taken back."""

    def close(self) -> None: ...


class TensorBoardSink:
    """Scalars through tensorboard's own event writer, so that the controller needs no torch."""

    def __init__(self, directory: Path):
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as fault:
            raise ConfigError(
                f"logger.tensorboard is on, but its package is missing ({fault}). Run 'pip install tensorboard' or set logger.tensorboard = false."
            ) from fault
        self._event, self._summary = event_pb2, summary_pb2
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(directory), flush_secs=10)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, summary=self._summary.Summary(value=scalars)))

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
            raise ConfigError(f"logger.wandb.key is set, but wandb is missing ({fault}). Run 'pip install wandb' or leave logger.wandb.key unset.") from fault
        if cfg.key == "env" and not os.environ.get("WANDB_API_KEY"):
            raise ConfigError("logger.wandb.key = 'env', but WANDB_API_KEY is not set. Export it, or leave logger.wandb.key unset.")
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
