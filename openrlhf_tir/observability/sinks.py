"""The mirrors of the metrics: TensorBoard event files and a wandb run. Their packages are imported when a sink is made.

Both get scalars under the tags of tags.py, the configuration as hyper-parameters, and texts of samples.
"""

from __future__ import annotations

import html
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..config import Logger, LoggerWandb
from ..errors import Unavailable
from ..telemetry.metrics import Sink
from .tags import tag

log = logging.getLogger(__name__)

RETRY_S = 60.0
"""Seconds for which a mirror that failed is left alone."""
CLOSE_S = 60.0
"""Seconds within which a mirror must close. wandb waits for its server, and the model is exported afterwards."""


def mirrors_of(run_dir: Path, logger: Logger, config: Mapping[str, Any]) -> list[Mirror]:
    """Return a mirror for each tracker that is configured, for `telemetry.metrics.MetricsLog`.

    The checks before a run have seen that their packages are installed, and that wandb has its key.

    Args:
        run_dir: The run directory.
        logger: The [logger] section.
        config: The configuration, which the mirrors show as hyper-parameters.

    Raises:
        Unavailable: A tracker cannot be started now.
    """
    mirrors = []
    if logger.tensorboard_dir:
        directory = Path(run_dir) / logger.tensorboard_dir
        remedy = "Give logger.tensorboard_dir a directory that takes files, or set it to unset"
        mirrors.append(Mirror("TensorBoard", lambda: TensorBoardSink(directory, config), remedy))
    if logger.wandb.key:
        remedy = "Let this machine reach wandb's server, correct logger.wandb, or set logger.wandb.key to 'offline'"
        mirrors.append(Mirror("wandb", lambda: WandbSink(Path(run_dir), logger.wandb, config), remedy))
    return mirrors


class Mirror:
    """A sink that may fail at any time: full disk, no network, its own bugs.

    After a failure it is made anew, RETRY_S later at the earliest. Only the first making raises, so that a mirror that
    cannot work at all is reported at the start.

    Attributes:
        name: Name of the sink.
        lost: Number of rows that the sink did not get.
    """

    def __init__(
        self, name: str, make: Callable[[], Sink], remedy: str = "", clock: Callable[[], float] = time.monotonic
    ):
        """Make the sink.

        Args:
            name: Name of the sink, for messages.
            make: Makes the sink, again after each failure.
            remedy: What to do if it cannot be made now, as a sentence without its full stop.
            clock: Returns seconds.

        Raises:
            Unavailable: It cannot be made.
        """
        self.name = name
        self.lost = 0
        self._make = make
        self._clock = clock
        self._retry_at = 0.0
        try:
            self._sink: Sink | None = make()
        except Exception as error:  # The client of a third party's service may raise anything.
            raise Unavailable(f"{name} does not start ({type(error).__name__}: {error}). {remedy}.") from error
        self._was_reported = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of a step under their tags, or count them as lost."""
        tagged = {tag(name): value for name, value in values.items()}
        self.lost += not self._try(lambda sink: sink.log(step, tagged))

    def text(self, step: int, texts: Mapping[str, str]) -> None:
        """Write texts. A text that is refused is not a row, so it is not counted."""
        self._try(lambda sink: sink.text(step, texts))

    def rollback(self, step: int) -> None:
        """Take back the steps after `step`."""
        self._try(lambda sink: sink.rollback(step))

    def close(self) -> None:
        """Close the sink, and log how many rows it lacks. One that does not close in time is left behind."""
        sink = self._sink
        self._sink = None
        self._retry_at = float("inf")
        if sink is not None:
            closing = threading.Thread(target=self._close, args=(sink,), name="close", daemon=True)
            closing.start()
            closing.join(CLOSE_S)
            if closing.is_alive():
                log.warning("%s did not close within %.0f s; metrics.jsonl is the record.", self.name, CLOSE_S)
        if self.lost:
            log.warning("%s lacks %d rows; metrics.jsonl is the record.", self.name, self.lost)

    def _close(self, sink: Sink) -> None:
        try:
            sink.close()
        except Exception as error:  # The client of a third party's service may raise anything.
            log.warning(
                "%s did not close (%s: %s) and may lack its last rows; metrics.jsonl is the record.",
                self.name,
                type(error).__name__,
                error,
            )

    def _try(self, call: Callable[[Sink], None]) -> bool:
        """Call the sink and return True if it succeeded."""
        if self._sink is None and self._clock() < self._retry_at:
            return False
        try:
            self._sink = self._sink or self._make()
            call(self._sink)
        except Exception as error:  # The client of a third party's service may raise anything.
            self._sink = None
            self._retry_at = self._clock() + RETRY_S
            if not self._was_reported:
                log.warning(
                    "%s refuses metrics (%s: %s). Training continues; it is tried again every %.0f s.",
                    self.name,
                    type(error).__name__,
                    error,
                    RETRY_S,
                )
            self._was_reported = True
            return False
        self._was_reported = False
        return True


class TensorBoardSink:
    """Writes scalars, texts and hyper-parameters by tensorboard's own event writer, so that the controller needs no
    torch."""

    def __init__(self, directory: Path, config: Mapping[str, Any]):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event = event_pb2
        self._summary = summary_pb2.Summary
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(directory), flush_secs=10)
        self._add(hparams_pb(hyper_parameters(config), trial_id=directory.resolve().parent.name), 0)

    def _add(self, summary: Any, step: int) -> None:
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, summary=summary))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(self._summary(value=scalars), step)

    def text(self, step: int, texts: Mapping[str, str]) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        for name, text in texts.items():
            self._add(text_pb(name, text), step)

    def rollback(self, step: int) -> None:
        # A START event tells TensorBoard to hide what earlier files hold from this step on.
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step + 1, session_log=start))

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """One wandb run per run directory. Its id is kept in the file `wandb_id`, so a resume continues the same run."""

    def __init__(self, run_dir: Path, settings: LoggerWandb, config: Mapping[str, Any]):
        import wandb

        offline = settings.key == "offline" or os.environ.get("WANDB_MODE") in ("offline", "disabled")
        if settings.key not in ("env", "login") and not offline:
            wandb.login(key=settings.key)
        self._run = wandb.init(
            dir=str(run_dir),
            project=settings.project,
            entity=settings.org,
            group=settings.group,
            name=settings.run_name or run_dir.name,
            id=_run_id(run_dir),
            resume="allow",
            mode="offline" if settings.key == "offline" else None,  # With None wandb reads WANDB_MODE.
            config=hyper_parameters(config),
        )
        # wandb's own step can never decrease, but a resumed run takes steps back. So our step is a column, and the
        # charts use it as their x axis.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self._wandb = wandb

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def text(self, step: int, texts: Mapping[str, str]) -> None:
        shown = {
            name: self._wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False) for name, text in texts.items()
        }
        self._run.log({"step": step, **shown})

    def rollback(self, step: int) -> None:
        self._run.summary["rolled_back_to"] = step

    def close(self) -> None:
        self._run.finish()


def hyper_parameters(config: Mapping[str, Any]) -> dict[str, bool | float | str]:
    """Return the configuration as the trackers show it: dotted names; values that are not numbers are texts."""
    flat: dict[str, bool | float | str] = {}

    def add(tree: Mapping[str, Any], prefix: str) -> None:
        for key, value in tree.items():
            if isinstance(value, Mapping) and value:
                add(value, f"{prefix}{key}.")
            elif isinstance(value, bool):
                flat[f"{prefix}{key}"] = value
            elif isinstance(value, int | float):
                flat[f"{prefix}{key}"] = float(value)
            elif value is not None:
                flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)

    add(config, "")
    return flat


def _run_id(run_dir: Path) -> str:
    path = run_dir / "wandb_id"
    if not path.exists():
        run_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex[:12])
    return path.read_text().strip()
