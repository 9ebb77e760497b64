"""The mirrors of the metrics: TensorBoard and wandb get every row under its tag, and no fault of theirs ends a run."""

import sys
import threading

import pytest

from openrlhf_tir.config import Logger, LoggerWandb
from openrlhf_tir.errors import Unavailable
from openrlhf_tir.observability import sinks
from openrlhf_tir.observability.sinks import Mirror, mirrors_of
from openrlhf_tir.telemetry import metrics
from openrlhf_tir.telemetry.metrics import MetricsLog


def log_of(run_dir, logger, config=None):
    """A log with the mirrors that are configured."""
    return MetricsLog(run_dir, logger, mirrors_of(run_dir, logger, config or {}))


def test_a_mirror_that_fails_is_said_once_made_anew_later_and_its_lost_rows_are_counted(caplog):
    now, made, rows = [0.0], [], []

    class Shaky:
        def __init__(self):
            made.append(self)

        def log(self, step, values):
            if len(made) == 1:
                raise RuntimeError("writer thread died")
            rows.append(step)

    mirror = Mirror("TensorBoard", Shaky, clock=lambda: now[0])
    for step, at in ((1, 0.0), (2, 1.0), (3, 61.0)):
        now[0] = at
        mirror.log(step, {})
    assert (len(made), rows, mirror.lost) == (2, [3], 2)
    assert len(caplog.records) == 1 and "TensorBoard" in caplog.text


def test_a_tracker_that_no_node_of_the_cluster_reaches_is_said_with_its_remedy(tmp_path, monkeypatch):
    class Unreachable(FakeWandb):
        def init(self, **kwargs):
            raise RuntimeError("Run initialization has timed out after 90.0 sec")

    monkeypatch.setitem(sys.modules, "wandb", Unreachable())
    with pytest.raises(Unavailable, match=r"after 90\.0 sec.*logger\.wandb\.key.*'offline'"):
        log_of(tmp_path, Logger(tensorboard_dir=None, wandb=LoggerWandb(key="env")))


def test_a_mirror_that_does_not_close_keeps_no_run_from_its_end(monkeypatch, caplog):
    released = threading.Event()

    class Waits:
        def close(self):
            released.wait(60)

    monkeypatch.setattr(sinks, "CLOSE_S", 0.05)
    mirror = Mirror("wandb", Waits)
    try:
        mirror.close()
        assert not released.is_set()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
    finally:
        released.set()


def test_a_mirror_that_fails_to_close_is_not_promised_another_try(caplog):
    class Fails:
        def log(self, step, values): ...

        def close(self):
            raise ConnectionError("no route")

    mirror = Mirror("wandb", Fails)
    mirror.close()
    mirror.log(1, {})
    assert mirror.lost == 1, "it is not made anew"
    (message,) = caplog.messages
    assert "no route" in message and "metrics.jsonl" in message and "again" not in message


def read_events(directory):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [event for path in sorted(directory.iterdir()) for event in EventFileLoader(str(path)).Load()]


def scalars(directory):
    return {
        (e.step, v.tag): v.tensor.float_val[0]
        for e in read_events(directory)
        for v in e.summary.value
        if v.tensor.float_val
    }


def test_tensorboard_gets_every_finite_scalar(tmp_path):
    with log_of(tmp_path, Logger()) as log:
        log.log(1, {"accuracy": 0.5, "ess": float("nan")})
    assert scalars(tmp_path / "tensorboard") == {(1, "rollout/accuracy"): 0.5}


def test_mirrors_get_every_nth_step_and_every_evaluation(tmp_path):
    with log_of(tmp_path, Logger(logging_steps=2)) as log:
        log.log(1, {"accuracy": 0.25})
        log.log(2, {"accuracy": 0.5})
        log.log(3, {"accuracy": 0.75, "eval/accuracy": 1.0})
    assert sorted(scalars(tmp_path / "tensorboard")) == [
        (2, "rollout/accuracy"),
        (3, "eval/accuracy"),
        (3, "rollout/accuracy"),
    ]
    assert metrics.read(tmp_path)["accuracy"] == [0.25, 0.5, 0.75]


def test_tensorboard_shows_a_resumed_run_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with log_of(tmp_path, Logger()) as log:
        for step in (1, 2, 3):
            log.log(step, {"loss": 1.0})
    with log_of(tmp_path, Logger()) as log:
        log.truncate_after(1)
        log.log(2, {"loss": 9.0})
    shown = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("learner/loss")
    assert [(e.step, e.value) for e in shown] == [(1, 1.0), (2, 9.0)]


class FakeWandb:
    """The part of wandb's interface that the sink uses; remembers its calls."""

    def __init__(self):
        self.inits, self.rows, self.summary, self.keys = [], [], {}, []

    def login(self, key):
        self.keys.append(key)

    def init(self, **kwargs):
        self.inits.append(kwargs)
        return self

    def define_metric(self, *args, **kwargs):
        pass

    def log(self, row):
        self.rows.append(row)

    def finish(self):
        pass


def test_a_resume_goes_on_in_the_same_wandb_run(tmp_path, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    logger = Logger(tensorboard_dir=None, wandb=LoggerWandb(key="secret", project="p"))
    for step in (1, 2):
        with log_of(tmp_path, logger, {"seed": 7}) as log:
            log.log(step, {"loss": 0.5})
    assert fake.inits[0]["id"] == fake.inits[1]["id"]
    assert fake.inits[0]["config"] == {"seed": 7.0}
    assert fake.rows == [{"step": 1, "learner/loss": 0.5}, {"step": 2, "learner/loss": 0.5}]
    assert fake.keys == ["secret", "secret"]


def test_wandb_offline_needs_no_key_and_logs_in_nowhere(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with log_of(tmp_path / "offline", Logger(tensorboard_dir=None, wandb=LoggerWandb(key="offline"))) as log:
        log.log(1, {"loss": 0.5})
    assert fake.inits[0]["mode"] == "offline" and fake.keys == [] and len(fake.rows) == 1
    with log_of(tmp_path / "login", Logger(tensorboard_dir=None, wandb=LoggerWandb(key="login"))):
        assert fake.inits[1]["mode"] is None and fake.keys == []
    monkeypatch.setenv("WANDB_MODE", "offline")
    with log_of(tmp_path / "env", Logger(tensorboard_dir=None, wandb=LoggerWandb(key="env"))):
        assert fake.keys == []


def test_the_trackers_get_the_recipe_as_hyper_parameters_and_texts_of_samples(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    config = {"train": {"seed": 7, "overwrite": False}, "filter": {"names": ["a", "b"]}, "eval": {"dataset": None}}
    with log_of(tmp_path, Logger(), config) as log:
        log.log(1, {"accuracy": 0.5})
        log.text(1, {"rollout/sample_accepted": "**right**"})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (text,) = events.Tensors("rollout/sample_accepted")
    assert text.step == 1 and text.tensor_proto.string_val[0] == b"**right**"
    assert events.SummaryMetadata("rollout/sample_accepted").plugin_data.plugin_name == "text"
    about = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    start = metadata.parse_session_start_info_plugin_data(about)
    assert start.hparams["train.seed"].number_value == 7 and start.hparams["train.overwrite"].bool_value is False
    assert start.hparams["filter.names"].string_value == '["a", "b"]' and "eval.dataset" not in start.hparams


def test_event_files_go_where_they_are_asked_to(tmp_path):
    with log_of(tmp_path / "run", Logger(tensorboard_dir=str(tmp_path / "events"))) as log:
        log.log(1, {"accuracy": 0.5})
    assert scalars(tmp_path / "events") == {(1, "rollout/accuracy"): 0.5}
    assert not (tmp_path / "run" / "tensorboard").exists()
