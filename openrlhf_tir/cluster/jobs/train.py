"""Train in a running session: wire the parts into the loop, then export the model and write summary and report."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ...config import Config
from ...config.environments import without_calls
from ...config.secrets import without_keys
from ...config.settings import to_toml
from ...errors import CheckpointDamaged, DataError, InfraError, LearnerDied, PayloadLost, WeightsUnverified
from ...machine.sizes import room
from ...memory.model_size import push_bytes
from ...observability.report import summary as summaries
from ...observability.report.cycle import cycle_of
from ...observability.sinks import mirrors_of
from ...pipeline.checkpoints import disk, model_export, new_ledger
from ...pipeline.checkpoints.checkpoint import Checkpoints
from ...pipeline.checkpoints.lineage import checkpoints_of, resumable
from ...pipeline.lane.keeper import fast_lane
from ...pipeline.ledger.ledger import Ledger, audit
from ...pipeline.ledger.lines import LEDGER
from ...pipeline.live import Live
from ...pipeline.loop import Pipeline
from ...pipeline.method_errors import MethodErrors
from ...pipeline.observer import Observer
from ...pipeline.tracker_samples import TrackerSamples
from ...telemetry import heartbeat, trajectories
from ...telemetry import metrics as metrics_log
from ...telemetry import timeline as timelines
from ...telemetry.progress import Progress
from ...waiting.background import background
from ...waiting.deadlines import Deadline, within
from ...waiting.restart_count import RestartCount
from ...weights.publisher import WeightPublisher
from ...weights.push_files import push_directory
from ...weights.transports import transport_of
from ...weights.verify import Reference
from ..lanes import PoolLanes
from ..learner_group import MAX_RESTARTS
from ..nodes import has_gpus, only_here
from ..rollout_actor import ENDPOINTS
from ..say import say
from ..services import Services
from . import exported
from .control import followed
from .evaluate import evaluate, groups_at_once, mode_of, try_to_evaluate
from .inputs import Inputs, TaskPrompts
from .measured import EvalResult, HeldOut, evaluation_row

log = logging.getLogger(__name__)

BUSY_EVERY_S = 5.0
"""Seconds between two collections of the actors' busy times."""
SHOW_EVERY_S = 1.0
"""Seconds between two updates of the status."""
BASE = "base.json"
"""Name of the file with the base model's figures."""
CALIBRATIONS = 3
"""Tries to calibrate the canary's tolerance if every engine dies under it. An engine that is lost for another reason is
not lost three times."""
RESTARTED = (LearnerDied, PayloadLost)
"""Errors after which the learner ranks start again from the last checkpoint."""


@dataclass(frozen=True, slots=True)
class _Run:
    """What all attempts of a run share: learner ranks that die start again from a checkpoint.

    Attributes:
        services: The session.
        cfg: The configuration.
        inputs: The prompts.
        checkpoints: The run's checkpoints.
        metrics: Where the loop writes its metrics.
        latest: The latest evaluation of this attempt, by the version that it measured.
        method_errors: Groups that a user's code has failed on. The code is the same after a restart.
    """

    services: Services
    cfg: Config
    inputs: Inputs
    checkpoints: Checkpoints
    metrics: metrics_log.MetricsLog
    latest: dict[int, EvalResult] = field(default_factory=dict)
    method_errors: MethodErrors = field(default_factory=MethodErrors)


async def run_training(
    services: Services,
    cfg: Config,
    inputs: Inputs,
    *,
    base: HeldOut | None = None,
    setup_s: float = 0.0,
    cold_start_s: float = 0.0,
) -> summaries.Summary:
    """Train from the model at cfg.actor.model_name_or_path, which the session's engines and learner hold.

    Args:
        services: The session.
        cfg: The configuration.
        inputs: The prompts.
        base: Figures of the base model, if they are known.
        setup_s: Seconds that the set-up took, for the summary.
        cold_start_s: Seconds that the cold start took, for the summary.

    Returns:
        The summary of the run.

    Raises:
        Stopped: The run was asked to stop.
        ExceptionGroup: Tasks of the loop failed; it holds their errors. Of lost ranks and groups (LearnerDied,
            PayloadLost) only those that came MAX_RESTARTS times without a new checkpoint.
        InfraError: The model could not be exported, or no engine could be calibrated.
    """
    started = time.monotonic()
    checkpoints = checkpoints_of(cfg, inputs.prompts.tasks)
    resuming = _resuming(services.console, cfg, inputs, checkpoints)
    if not resuming:
        _clear(cfg, checkpoints)
    public = without_keys(cfg)
    with _not_fatal("config.toml"):
        (cfg.run_dir / "config.toml").write_text(to_toml(public))
    base = base or _read_base(cfg)
    if base is None and inputs.held_out:
        base = await try_to_evaluate(services, cfg, inputs.held_out, "the base model")
    if base:
        with _not_fatal(BASE):
            (cfg.run_dir / BASE).write_text(base.model_dump_json())

    mirrors = mirrors_of(cfg.run_dir, cfg.logger, public.model_dump(mode="json"))
    with metrics_log.MetricsLog(cfg.run_dir, cfg.logger, mirrors) as metrics:
        if not resuming:
            metrics.truncate_after(-1)
            if base:
                metrics.log(0, base.row)
        rl_started = time.monotonic()
        run = _Run(services, cfg, inputs, checkpoints, metrics)
        # The last push is kept until the evaluation is over, because an engine that is replaced meanwhile needs it.
        async with AsyncExitStack() as pushing:
            async with followed(cfg, services.pool):
                version = await _pipeline(run, resuming, pushing)
            training_s = time.monotonic() - rl_started
            trained = None
            if inputs.held_out:
                trained = await try_to_evaluate(
                    services, cfg, inputs.held_out, "the trained model", run.latest.get(version)
                )
                if trained:
                    metrics.log(version, trained.row)
    with _not_fatal("the audit of the ledger"):
        _print_audit(services.console, cfg.run_dir / LEDGER)
    if version == 0:
        say(services.console, _untrained(cfg), "yellow")
    model = cfg.run_dir / cfg.ckpt.output_dir
    await _export(services, cfg, checkpoints, model)
    columns = metrics_log.read(cfg.run_dir)
    summary = summaries.Summary(
        base=base and base.scores,
        trained=trained and trained.scores,
        steps=version,
        seconds=summaries.Durations(
            setup=setup_s,
            cold_start=cold_start_s,
            training=training_s,
            total=setup_s + cold_start_s + time.monotonic() - started,
        ),
        peak_pss_gib=services.pss.peak_gib,
        overlap_ratio=timelines.overlap_ratio(timelines.read(cfg.run_dir)),
        trained_tokens_per_s=metrics_log.total(columns, "trained_tokens")
        / (metrics_log.total(columns, "wall_s") or 1.0),
        seed=cfg.train.seed,
        model=str(model),
        cycle=cycle_of(columns),
    )
    _show_result(services.console, cfg, summary)
    exported.say_where(services.console, cfg, model)
    await _export_best(services, cfg, checkpoints, model.with_name(f"{model.name}_best"))
    return summary


def _clear(cfg: Config, checkpoints: Checkpoints) -> None:
    """Remove what an earlier run has left in the run directory. The base model's figures stay for a resume that finds
    no checkpoint: they are of the same model."""
    checkpoints.clear()
    for name in (LEDGER, timelines.FILE, *(() if cfg.train.resume else (BASE,))):
        (cfg.run_dir / name).unlink(missing_ok=True)
    for directory in trajectories.DIRECTORIES:
        for path in (cfg.run_dir / directory).glob("*.jsonl"):
            os.truncate(path, 0)  # Truncated and not removed, because the actors have opened them already.


def _show_result(console: Console, cfg: Config, summary: summaries.Summary) -> None:
    """Write the summary and the report, and print the figures."""
    with _not_fatal(summaries.FILE):
        summaries.write(cfg.run_dir, summary)
    is_evaluated = summary.trained is not None or summary.base is not None
    console.print(summaries.table(summary) if is_evaluated else "held-out evaluation: none, eval.dataset is not set")
    with _not_fatal("the report"), heartbeat.doing("writing the report"):
        # It imports matplotlib, for which the start of a run need not wait.
        from ...observability.report.build import build_report

        say(console, f"report: {build_report(cfg.run_dir)}")


async def _export(services: Services, cfg: Config, checkpoints: Checkpoints, model: Path) -> None:
    """Export the trained model.

    Raises:
        InfraError: It could not be written; the message says what is left of its weights.
    """
    try:
        with heartbeat.doing("exporting the model"):
            await model_export.export(services.learner, model, lambda directory: exported.complete(cfg, directory))
    except (OSError, LearnerDied) as error:
        raise InfraError(_not_exported(model, error, checkpoints)) from error


def _not_exported(model: Path, error: Exception, checkpoints: Checkpoints) -> str:
    """Return the message for a model that could not be exported: why, and what is left of its weights."""
    last = checkpoints.latest()
    reason = error.args[0] if isinstance(error, LearnerDied) else f"{error}; {room(model.parent)}. Make room"
    remedy = (
        f"--resume continues from {last.name}, and exports it"
        if last
        else "There is no checkpoint either: the trained weights are lost"
    )
    return f"Training is done, but the model could not be exported to {model}: {str(reason).rstrip('.')}. {remedy}."


async def _export_best(services: Services, cfg: Config, checkpoints: Checkpoints, directory: Path) -> None:
    """Export the best checkpoint, if there is one.

    The model itself is exported already, so a disk that refuses and a damaged checkpoint are printed and end no run.
    """
    name, score = checkpoints.best()
    if name:
        try:
            async with services.learning():
                await checkpoints.export_best(services.learner, directory, lambda made: exported.complete(cfg, made))
            say(services.console, f"best:   {directory} ({cfg.ckpt.best_metric_key} = {score:.4g}, {name})")
        except (CheckpointDamaged, OSError) as error:
            say(services.console, f"best:   not exported. {error}", "red")


@contextmanager
def _not_fatal(what: str) -> Iterator[None]:
    """Log what cannot be written for people, because the disk refuses it or its source was edited; it ends no run."""
    try:
        yield
    except (OSError, DataError) as error:
        log.warning("%s was not written: %s", what, error)


def _resuming(console: Console, cfg: Config, inputs: Inputs, checkpoints: Checkpoints) -> bool:
    """Return True if there is a verified checkpoint to continue from, and print what a person should know."""
    if not cfg.train.resume:
        return False
    path, messages = resumable(cfg, checkpoints, inputs.prompts.tasks)
    with disk.faults_as_unavailable(checkpoints.directory):
        if path and cfg.train.new_ledger:
            path, message = new_ledger.begin(checkpoints, path, cfg.run_dir / LEDGER)
            messages = [*messages, message]
        messages += checkpoints.accept(path) if path else []
    for message in messages:
        say(console, f"resume: {message}")
    return path is not None


async def _pipeline(run: _Run, resume: bool, pushing: AsyncExitStack) -> int:
    """Run the loop to its end and return the final version.

    If learner ranks die, all of them start again from the last checkpoint; the engines stay up.

    Args:
        run: The run.
        resume: Whether to start from a checkpoint.
        pushing: The last push is kept until this is closed.
    """
    services, cfg = run.services, run.cfg
    directory = push_directory(cfg.run_dir, push_bytes(cfg), one_node=only_here())
    tolerance: float | Reference | None = cfg.fixed_canary_tolerance
    restarts = RestartCount(MAX_RESTARTS, run.checkpoints.latest_name)
    while True:
        publisher = WeightPublisher(
            services.learner,
            services.pool.members,
            directory,
            run.inputs.canary,
            tolerance=tolerance,
            seed=cfg.train.seed,
            deadline=Deadline.of(cfg, "timeouts.push_s"),
            transport=transport_of(
                cfg,
                services.learner,
                directory,
                gpus=has_gpus(),
                # A node that joins later does not see this node's shared memory.
                place=lambda: directory if only_here() else push_directory(cfg.run_dir, None, one_node=False),
            ),
        )
        pushing.push_async_callback(publisher.close)
        # Detached at the end, so that an engine that starts later does not wait for a learner or file that is gone.
        pushing.callback(services.pool.detach_prover, publisher.join)
        services.pool.attach_prover(publisher.join)
        try:
            if tolerance is None:
                with heartbeat.doing("calibrating the proof of weight pushes"):
                    tolerance = await _calibrated(services, cfg, publisher)
            run.latest.clear()  # Training again from a checkpoint leads to other weights.
            return await _train_until_ranks_die(run, publisher, resume)
        except (BaseExceptionGroup, *RESTARTED) as error:
            lost = error if isinstance(error, BaseExceptionGroup) else BaseExceptionGroup("", [error])
            other_errors = lost.split(RESTARTED)[1]
            if other_errors is not None:
                raise
            services.stop.raise_if_asked(error)
            if not restarts.take():
                raise
            kind = LearnerDied if lost.subgroup(LearnerDied) else PayloadLost
            event = "A learner rank is lost" if kind is LearnerDied else "Sampled groups are lost"
            message = f"{event} ({kind.reason}). All ranks start again from the last checkpoint, {restarts}."
            say(services.console, message, "yellow")
        services.pool.hold_new_engines()
        await pushing.aclose()
        await services.replace_learner(cfg)
        resume = True


async def _calibrated(services: Services, cfg: Config, publisher: WeightPublisher) -> Reference:
    """Calibrate the canary and return its reference.

    If all engines died or were given up under the canary, their replacements are asked.

    Raises:
        WeightsUnverified: No engine answered.
    """
    for tries_left in reversed(range(CALIBRATIONS)):
        try:
            async with services.sampling():
                reference = await publisher.calibrate()
        except WeightsUnverified as error:
            if not tries_left:
                raise
            say(services.console, f"{error} Waiting for an engine that replaces them.", "yellow")
            await within(
                Deadline.of(cfg, "timeouts.start_s"),
                services.pool.wait_until_healthy(),
                "The replacement of the engines",
            )
        else:
            say(services.console, f"canary, calibrated: {reference.tolerance}")
            return reference
    raise AssertionError("the last calibration returns or raises")


async def _train_until_ranks_die(run: _Run, publisher: WeightPublisher, resume: bool) -> int:
    """Wire the loop, run it with the learner ranks that are up, and return the final version."""
    services, cfg = run.services, run.cfg

    async def evaluate_now() -> dict[str, float]:
        silent = without_calls(cfg, cfg.eval.max_calls)
        version = pipeline.scheduler.pushed_version
        result = await evaluate(
            services.rollout,
            run.inputs.held_out,
            mode_of(cfg, version),
            silent,
            at_once=groups_at_once(cfg, cfg.eval.n_samples_per_prompt),
            tick=pipeline.watchdog.beat,
        )
        run.latest.clear()
        run.latest[version] = result
        return evaluation_row(result)

    if cfg.rollout.agent == "external":
        urls = ", ".join(m.url for m in services.pool.members)
        say(
            services.console,
            f"rollout.agent = external: waiting for agents that take tasks (POST /agent/tasks) at {urls};"
            f" {cfg.run_dir / ENDPOINTS} lists them. examples/openai_agent.py is one.",
        )
    timeline = timelines.Timeline(cfg.run_dir / timelines.FILE)
    ledger = Ledger(cfg.run_dir / LEDGER)
    with Progress(
        cfg.train.max_steps, services.console, runs_code=any(e.server_info.runs_code for e in cfg.environments.values())
    ) as progress:
        observer = Observer(run.metrics, timeline, progress, [*cfg.environments], without_calls(cfg))
        pipeline = Pipeline(
            cfg,
            prompts=TaskPrompts(run.inputs.prompts, cfg),
            rollout=services.rollout,
            learner=services.learner,
            publisher=services.publishing(publisher, lambda: observer.phase("wait for GPUs", pipeline.version)),
            ledger=ledger,
            checkpoints=run.checkpoints,
            observer=observer,
            measure=evaluate_now,
            stop=services.stop,
            method_errors=run.method_errors,
            complete=lambda directory: exported.complete(cfg, directory),
        )
        try:
            live = Live(pipeline.scheduler, observer, progress, cfg.pipeline.fill_batches)
            texts = TrackerSamples(pipeline.scheduler, pipeline.drop_notice, services.rollout, run.metrics.text)
            async with (
                _watched(services, timeline, live),
                background("samples for trackers", texts.run),
                fast_lane(cfg, pipeline.scheduler, PoolLanes(services.pool)),
            ):
                await pipeline.run(resume=resume)
        finally:
            heartbeat.show(None)
            ledger.close()
            timeline.close()
    return pipeline.version


def _read_base(cfg: Config) -> HeldOut | None:
    """Return the base model's figures that an interrupted run left, or None."""
    path = cfg.run_dir / BASE
    try:
        return HeldOut.model_validate_json(path.read_text()) if cfg.train.resume and path.exists() else None
    except (OSError, ValueError) as error:  # pydantic's ValidationError among them
        log.warning("%s cannot be read (%s): the base model is evaluated again.", path, error)
        return None


def _print_audit(console: Console, ledger: Path) -> None:
    report = audit(ledger)
    ends = ", ".join(f"{end} {count}" for end, count in sorted(report.ended.items()))
    say(console, f"ledger: {ends}; open {len(report.open)}, errors {len(report.errors)}")
    for error in report.errors:
        say(console, f"ledger: {error}", "red")


def _untrained(cfg: Config) -> str:
    """Return the message of a run whose prompts ran out before the first update."""
    return (
        "No update was made: the prompts ran out before a group could be trained, so the model that is exported is the"
        f" untrained one. `openrlhf-tir play {cfg.run_dir} --dropped` shows what became of the groups; raise"
        " train.num_episodes, or change prompts, reward or filters."
    )


@asynccontextmanager
async def _watched(services: Services, timeline: timelines.Timeline, live: Live) -> AsyncIterator[None]:
    """Collect what the actors do, for the time of the block.

    When engines decoded and environments started and graded goes into the timeline and the overlap ratio; what they do
    right now goes to the console and the live page.
    """
    activity: dict[str, float] = {}

    async def collect() -> None:
        async with asyncio.timeout(BUSY_EVERY_S):
            for actor, spans in (await services.pool.busy_intervals()).items():
                for (track, name), intervals in spans.items():
                    for start, end in intervals:
                        timeline.add(f"engine/{actor}" if track == "engine" else track, name, start, end)
            reported = await services.pool.activity()
            activity.clear()
            activity.update(reported)

    async def forever() -> None:
        while True:
            await asyncio.sleep(BUSY_EVERY_S)
            with suppress(TimeoutError):
                await collect()

    async def show() -> None:
        while True:
            heartbeat.show(live.status(activity))
            await asyncio.sleep(SHOW_EVERY_S)

    async with (
        background("busy spans", forever),
        background("status", show),
    ):
        yield
    with suppress(TimeoutError):
        await collect()
