"""Mirrors of the metrics: TensorBoard event files and a wandb run. Their packages are imported when a sink is made.

Both get scalars under the tags of tags.py, the configuration as hyper-parameters, and texts of samples.
"""

from __future__ import annotations

import html
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..config import LoggerWandb
from ..errors import ConfigError

log = logging.getLogger(__name__)

RETRY_S = 60.0
"""How long a mirror that failed is left alone."""


class Sink(Protocol):
    """A mirror. Names are tags (tags.py)."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def text(self, step: int, texts: Mapping[str, str]) -> None:
        """Texts of samples, in Markdown."""

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

    def text(self, step: int, texts: Mapping[str, str]) -> None:
        """A text that is refused is no row: it is not counted."""
        self._try(lambda sink: sink.text(step, texts))

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
    """Scalars, texts and hyper-parameters through tensorboard's own event writer, so that the controller needs no
    torch."""

    def __init__(self, directory: Path, config: Mapping[str, Any] | None = None):
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
        if config:
            self._hyper_parameters(hyper_parameters(config), directory.resolve().parent.name)

    def _hyper_parameters(self, values: Mapping[str, bool | float | str], name: str) -> None:
        """The event that TensorBoard's HParams tab reads: one session, which is this run."""
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        start = plugin_data_pb2.SessionStartInfo(group_name=name, start_time_secs=time.time())
        for key, value in values.items():
            if isinstance(value, bool):
                start.hparams[key].bool_value = value
            elif isinstance(value, float):
                start.hparams[key].number_value = value
            else:
                start.hparams[key].string_value = value
        experiment = api_pb2.Experiment(
            hparam_infos=[api_pb2.HParamInfo(name=key, type=_hparam_type(value)) for key, value in values.items()],
            metric_infos=[api_pb2.MetricInfo(name=api_pb2.MetricName(tag=shown)) for shown in SHOWN_BESIDE],
        )
        for tag_, data in (
            (metadata.EXPERIMENT_TAG, plugin_data_pb2.HParamsPluginData(experiment=experiment)),
            (metadata.SESSION_START_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_start_info=start)),
        ):
            value = self._summary.Summary.Value(tag=tag_, metadata=metadata.create_summary_metadata(data))
            value.tensor.CopyFrom(metadata.NULL_TENSOR)
            self._add([value], 0)

    def _add(self, values: Sequence[Any], step: int) -> None:
        self._writer.add_event(
            self._event.Event(wall_time=time.time(), step=step, summary=self._summary.Summary(value=values))
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._add([self._summary.Summary.Value(tag=name, simple_value=v) for name, v in values.items()], step)

    def text(self, step: int, texts: Mapping[str, str]) -> None:
        from tensorboard.compat.proto import tensor_pb2, types_pb2
        from tensorboard.plugins.text import metadata

        values = []
        for name, text in texts.items():
            about = metadata.create_summary_metadata(display_name=name, description="")
            tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode()])
            values.append(self._summary.Summary.Value(tag=name, metadata=about, tensor=tensor))
        self._add(values, step)

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
                f"logger.wandb.key or logger.wandb.mode is set, but wandb is missing ({fault})."
                " Run 'pip install wandb', or leave both unset."
            ) from fault
        offline = cfg.mode == "offline" or os.environ.get("WANDB_MODE") in ("offline", "disabled")
        if cfg.key == "env" and not offline and not os.environ.get("WANDB_API_KEY"):
            raise ConfigError(
                "logger.wandb.key = 'env', but WANDB_API_KEY is not set. Export it, leave logger.wandb.key unset, or"
                " set logger.wandb.mode = 'offline', which needs no key."
            )
        if cfg.key not in (None, "env") and not offline:
            wandb.login(key=cfg.key)
        self._run = wandb.init(
            dir=str(run_dir),
            project=cfg.project,
            entity=cfg.org,
            group=cfg.group,
            name=cfg.run_name or run_dir.name,
            id=_run_id(run_dir),
            resume="allow",
            mode="offline" if cfg.mode == "offline" else None,  # None: WANDB_MODE decides, as everywhere
            config=hyper_parameters(config),
        )
        # wandb's own step can never go back, a resumed run does: our step is a column that the charts use as x.
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


SHOWN_BESIDE = ("eval/accuracy", "reward/reward_mean", "rollout/accuracy")
"""Tags that TensorBoard's HParams tab shows beside the hyper-parameters."""


def hyper_parameters(config: Mapping[str, Any]) -> dict[str, bool | float | str]:
    """The configuration as the trackers' tables hold it: dotted names; what is no number is text."""
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


def _hparam_type(value: bool | float | str) -> int:
    from tensorboard.plugins.hparams import api_pb2

    if isinstance(value, bool):
        return api_pb2.DATA_TYPE_BOOL
    return api_pb2.DATA_TYPE_FLOAT64 if isinstance(value, float) else api_pb2.DATA_TYPE_STRING


def _run_id(run_dir: Path) -> str:
    path = run_dir / "wandb_id"
    if not path.exists():
        run_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex[:12])
    return path.read_text().strip()
