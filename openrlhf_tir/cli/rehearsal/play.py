"""Play the episodes of a rehearsal, from the environments' servers to the estimator. Nothing stays on disk."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ... import filters
from ...algorithms.advantages import ESTIMATOR
from ...config import Config, own_files
from ...config.environments import Environment, entry_of
from ...config.paths import local_path
from ...config.secrets import ENV_TOKEN
from ...config.sections.reward import REMOTE
from ...data.hub import is_cached
from ...engines.codec import HfCodec
from ...errors import USER_CODE_REASONS, ConfigError, InfraError, MethodError, TirError
from ...filters import UserFilter
from ...filters.samples import SAMPLE_FILTER, SampleFilter
from ...rewards.limits import RewardLimits
from ...rewards.pool import RewardPools
from ...rewards.workers import Limits, Workers
from ...rollout import protocols
from ...rollout.environment_client.client import EnvClient
from ...rollout.group_judge import GroupJudge
from ...rollout.group_runner import GroupRunner
from ...rollout.protocols.agent_file.agent_file import AgentFile
from ...rollout.protocols.chat_format import chat_formats
from ...types import CORRECT_ABOVE, KEEP, Group, GroupKey, Segment, Task, Trajectory
from ...user_code import plugins
from ...user_code.loop_watch import LoopWatch
from ...waiting.deadlines import Deadline
from .engine import ScriptedEngine
from .result import Rehearsal
from .rewards import NotScored, RewardsUntilOneHangs
from .scripts import Script, scripts_of, short_scripts_of
from .tried import TriedEstimator, TriedLoss, estimator_inputs

STEP_S = 6.0
"""Deadline of a step of a user's environment in seconds: the rehearsal should take a minute at most."""
INDEX_S = 40.0
"""Deadline for the servers to start if one builds an index, in seconds. An index that takes longer is not waited for;
any other server has the time that a run gives it."""
GROUP_S = 40.0
"""Deadline for the episodes of one row, in seconds."""
REMOTE_AT_ONCE = 64
"""Calls of a remote reward that may run side by side: all of a rehearsal's episodes."""
MAX_ROWS = 512
"""Rows that are searched for one of each environment."""
MORE_ROWS = 3
"""Further rows of each environment, for which a right and a wrong answer are played."""
MORE_SHAPES = 6
"""Further rows of each environment that have other columns, or values of another kind, than those before them."""
WRONG_IS_CORRECT = "wrong_is_correct"
"""Name of the note that every wrong answer counts as correct."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)")
TORCH_S = 60.0
"""Deadline of a policy loss in seconds, without the import of torch in its process."""


def rehearse(cfg: Config, progress: Callable[[str], None] = lambda line: None) -> Rehearsal:
    """Play the scripts on the first rows of each environment, and call all user code with the result.

    Args:
        cfg: A configuration that passed the other checks.
        progress: Called with a line about what is done next.

    Raises:
        ConfigError: A server of the run's own cannot be started.
        EnvError: One did not start in time.
    """
    result = Rehearsal()
    directory = local_path(cfg.actor.model_name_or_path, "actor.model_name_or_path")
    if not directory.is_dir() and not is_cached(cfg.actor.model_name_or_path, "tokenizer_config.json"):
        result.notes.append(
            f"no episode was played: the tokenizer of {cfg.actor.model_name_or_path} is not on this machine yet"
        )
        result.untried = own_files.has_user_code(cfg)
        return result
    with tempfile.TemporaryDirectory(prefix="openrlhf_tir_rehearsal_") as scratch:
        asyncio.run(_Rehearsal(_shortened(cfg, Path(scratch)), result, progress).run())
    return result


def _has_own_code(environment: Environment) -> bool:
    """Return True if the environment or its turn protocol is user code."""
    return environment.env.file is not None or plugins.is_own(protocols.PROTOCOL, environment.env.protocol)


def _shortened(cfg: Config, scratch: Path) -> Config:
    """Return the configuration with a scratch run directory, and with deadlines that reveal a hang within a minute."""

    def short_deadlines(section: Any) -> dict[str, Any]:
        if not (cfg.train.agent_func_path or getattr(section, "file", None)):
            return {}
        return {"step_timeout_s": min(section.step_timeout_s or STEP_S, STEP_S)}

    rollout = {"min_valid": 1, "early_stop": False, "drift_check": 0.0, "group_deadline_s": GROUP_S}
    changed = {
        "run_dir": scratch,
        "rollout": cfg.rollout.model_copy(update=rollout),
        "reward": cfg.reward.model_copy(update={"workers": 1 if cfg.train.agent_func_path else 2}),
        "env": cfg.env.model_copy(update=short_deadlines(cfg.env)),
        "envs": {name: section.model_copy(update=short_deadlines(section)) for name, section in cfg.envs.items()},
        "train": cfg.train.model_copy(update={"start_wait_s": 0.0}),
    }
    return cfg.model_copy(update=changed)


class _Rehearsal:
    def __init__(self, cfg: Config, result: Rehearsal, progress: Callable[[str], None]) -> None:
        from ...cluster.jobs.inputs import tokenizer_of

        self.cfg = cfg
        self.result = result
        self.progress = progress
        self.tokenizer = tokenizer_of(cfg)
        self.codec = HfCodec(self.tokenizer)
        self.engine = ScriptedEngine(self.codec, self.tokenizer.eos_token_id)
        self.keys = itertools.count()
        self.watch = LoopWatch([str(path) for path in own_files.files_of(cfg)], always_s=STEP_S)

    async def run(self) -> None:
        from ...cluster.jobs.chat_tools import with_tools

        self.cfg = cfg = with_tools(self.cfg)
        self.watch.start()
        async with AsyncExitStack() as owned:
            owned.callback(self.watch.stop)
            tasks = self._tasks()
            limits = RewardLimits(
                check=Deadline(min(cfg.reward.verify_deadline_s, 2 * STEP_S), "the deadline"),
                remote=Deadline(2 * STEP_S, "the deadline"),
                remote_retries=0,
            )
            self.pools = RewardPools(cfg.environments, None, decode=self.codec.spell, limits=limits)
            owned.push_async_callback(self.pools.stop)
            # A remote reward takes no worker: it gathers the queries that come together, and is tried with all of them.
            remote = any(REMOTE in environment.reward.used for environment in cfg.environments.values())
            self.rewards = RewardsUntilOneHangs(self.pools, REMOTE_AT_ONCE if remote else cfg.reward.workers)
            self.judge = GroupJudge(cfg, self.pools.workers)
            await self.pools.workers.warm()  # so that the start of a worker is not part of an episode's time
            urls = await owned.enter_async_context(started_servers(cfg, self.result, self.progress))
            if urls is None:
                return
            envs = EnvClient.of(cfg.environments, urls, token=os.environ.get(ENV_TOKEN), owner="rehearsal")
            owned.push_async_callback(envs.close)
            writers = await self._agents(owned)
            chats = None if writers else chat_formats(cfg, self.codec, self.tokenizer)
            self.runner = GroupRunner(
                cfg, self.engine, self.codec, envs, self.rewards, lambda group: KEEP, "rehearsal", writers, chats
            )
            played = {entry_of(cfg.environments, name).name for name in tasks}
            for environment in cfg.environments.values():
                if environment.name not in played:
                    self._note_without_rows(environment)
            for name, env_tasks in tasks.items():
                await self._environment(entry_of(cfg.environments, name), env_tasks)
            await self._learner_code()

    def _tasks(self) -> dict[str, list[Task]]:
        """Return some rows of each environment, as a run renders them: the first ones, and others of another shape."""
        from ...cluster.jobs.inputs import prompts_of

        data = self.cfg.data.model_copy(update={"max_samples": min(self.cfg.data.max_samples or MAX_ROWS, MAX_ROWS)})
        longest = self.cfg.data.max_len - self.cfg.rollout.max_new_tokens
        by_env: dict[str, list[Task]] = {}
        for task in prompts_of(self.cfg, data, self.tokenizer, longest).tasks:
            by_env.setdefault(task.env, []).append(task)
        tasks = {name: various(env_tasks) for name, env_tasks in by_env.items()}
        if not tasks:
            raise ConfigError(
                f"None of the first {MAX_ROWS} prompts of {', '.join(data.datasets)} can be used: with data.max_len ="
                f" {self.cfg.data.max_len} and rollout.max_new_tokens = {self.cfg.rollout.max_new_tokens} a prompt may"
                f" have {longest} tokens. Raise data.max_len."
            )
        return tasks

    async def _agents(self, owned: AsyncExitStack) -> AgentFile | None:
        if not self.cfg.train.agent_func_path:
            return None
        self.progress("starting the agent file")
        model = self.cfg.actor.model_name_or_path
        agents = AgentFile(self.cfg, model, self.engine, self.codec, "rehearsal", len(self.tokenizer))
        owned.push_async_callback(agents.stop)
        await agents.start()
        return agents

    async def _environment(self, environment: Environment, tasks: list[Task]) -> None:
        """Play all scripts on the first row, and the short ones on a few more."""
        for number, task in enumerate(tasks):
            if self.result.faults:
                return
            chats = self.runner._chat_format(task)
            task = chats.task(task) if chats else task
            max_tokens = self.cfg.rollout.max_new_tokens
            self.engine.rendered = bool(chats)
            scripts = (
                self._scripts(task, environment)
                if number == 0
                else short_scripts_of(task, self.engine.complete, max_tokens)
            )
            row_note = "" if number == 0 else f" ({task.row or f'row {number + 1}'})"
            self.progress(f"environment {environment.name}: {len(scripts)} episodes{row_note}")
            group = await self._group(task, scripts, row_note)
            if number == 0:
                self.result.groups[environment.name] = group
                self.result.scripts[environment.name] = [script.title for script in scripts]
                self._note_without_calls(environment, group)
                self._note_wrong_is_correct(environment, [t for t in group.valid if scripts[t.index].wrong])
            await self._evaluate(group, environment)

    def _note_without_rows(self, environment: Environment) -> None:
        self.result.notes.append(
            f"no episode of environment {environment.name} was played: none of the first {MAX_ROWS} rows is for it"
        )
        self.result.untried |= _has_own_code(environment)

    def _note_without_calls(self, environment: Environment, group: Group) -> None:
        """Note that no episode called the environment, although a model may: its code was not tried."""
        calls = [call for trajectory in group.trajectories for call in trajectory.calls]
        executed = any(call.executed for call in calls)
        if (
            self.cfg.by_agent
            or environment.env.max_calls == 0
            or executed
            or len(group.valid) < len(group.trajectories)
        ):
            return
        self.result.notes.append(
            f"no episode called environment {environment.name}: no text of at most rollout.max_new_tokens ="
            f" {self.cfg.rollout.max_new_tokens} tokens is known that {environment.section}.protocol ="
            f" {environment.env.protocol!r} takes for a call. Raise that, or try the environment by `openrlhf-tir"
            " check-env`."
        )
        self.result.untried |= _has_own_code(environment)

    def _note_wrong_is_correct(self, environment: Environment, wrong: list[Trajectory]) -> None:
        """Note that every wrong answer counts as correct, as by a plain number with a bonus for the form."""
        if not wrong or any(trajectory.parts["correct"] <= CORRECT_ABOVE for trajectory in wrong):
            return
        rewards = " and ".join(f"{trajectory.scored:g}" for trajectory in wrong)
        if "accuracy" in environment.filter.order:
            effect = "Filter accuracy would drop every group"
            remedy = "return RewardParts with `correct`, or leave accuracy out of filter.names"
        else:
            effect = "The metric accuracy says nothing"
            remedy = "return RewardParts with `correct` if you need it"
        self.result.notes.append(
            f"{WRONG_IS_CORRECT}: each wrong answer to environment {environment.name} counts as correct (reward"
            f" {rewards}; a plain number is correct above 0). {effect}: {remedy}."
        )

    def _scripts(self, task: Task, environment: Environment) -> list[Script]:
        cfg = self.cfg
        protocol = None if cfg.by_agent else (lambda: protocols.make(environment.env))
        return scripts_of(task, environment, protocol, self.engine.complete, cfg.rollout.max_new_tokens)

    async def _group(self, task: Task, scripts: list[Script], row_note: str) -> Group:
        """Run one group whose i-th episode writes the i-th script, and record what fails."""
        key = GroupKey(0, next(self.keys))
        self.engine.begin([script.turns for script in scripts])
        if self.cfg.rollout.agent == "external":
            group = Group(key, task, await asyncio.gather(*(self._alone(task, i, s) for i, s in enumerate(scripts))))
        else:
            samples = {"n_samples_per_prompt": len(scripts)}
            self.runner.cfg = self.cfg.model_copy(update={"rollout": self.cfg.rollout.model_copy(update=samples)})
            _, group = await self.runner.run(key, task)
        self.result.episodes += len(scripts)
        for trajectory in group.trajectories:
            if trajectory.failed and trajectory.failed != NotScored.reason:
                during = scripts[trajectory.index].title + row_note
                method_failed = trajectory.failed in USER_CODE_REASONS
                in_user_code = method_failed or self._has_own_server(task)
                # The log still has the crash when a reward or filter fails later: that has a line of its own.
                why = trajectory.why if method_failed else self._crash(task) or trajectory.why
                if not why:  # It was given up with its group, for no reason that is known of this episode.
                    why = f"not all episodes were over within {GROUP_S:g} s ({trajectory.failed})"
                    in_user_code = False
                self.result.failed(why, trajectory.traceback, during, in_user_code=in_user_code)
        return group

    def _crash(self, task: Task) -> str | None:
        """Return what is said of a crash of the user's environment; None if its server did not crash."""
        from ...cluster.env_process import crash_place, log_file

        environment = entry_of(self.cfg.environments, task.env)
        log = log_file(self.cfg, environment)
        text = log.read_text(errors="replace") if log.is_file() else ""
        place = crash_place(text, environment.env.file)
        if place is None:
            return None
        return f"Environment {environment.name}: {place}: the process of the server crashed in that line."

    def _has_own_server(self, task: Task) -> bool:
        """Return True for a user's environment class or agent file: a step that does not end is then the user's
        mistake."""
        return entry_of(self.cfg.environments, task.env).env.file is not None or bool(self.cfg.train.agent_func_path)

    async def _alone(self, task: Task, index: int, script: Script) -> Trajectory:
        """Return a response that nothing follows, for a run in which an external agent writes them."""
        trajectory = Trajectory(index, np.asarray(self.codec.encode_prompt(task.prompt), np.int32))
        completion, _ = self.engine.complete(script.turns[0], (), self.cfg.rollout.max_new_tokens)
        trajectory.segments = [Segment.of_model(completion)]
        trajectory.finish_reason = completion.finish_reason
        try:
            trajectory.reward, correct, parts = await self.rewards.score(trajectory, task)
            trajectory.parts |= {"correct": float(correct), **parts}
        except InfraError as error:
            trajectory.failed, trajectory.why = error.reason, str(error)
            trajectory.traceback = getattr(error, "user_traceback", "")
        return trajectory

    async def _evaluate(self, group: Group, e: Environment) -> None:
        """Apply group reward and filters to the whole group, its right answers, its wrong answers, and one alone."""
        valid = group.valid
        right = [t for t in valid if t.parts["correct"] > CORRECT_ABOVE]
        wrong = [t for t in valid if t.parts["correct"] <= CORRECT_ABOVE]
        parts = {"all episodes": valid, "the right answers": right, "the wrong answers": wrong, "one": valid[:1]}
        for title, members in parts.items():
            if not members or self.result.faults:  # Stop at a fault: a filter that hangs would be waited for each time.
                continue
            during = f"the evaluation of {title}"
            await self._call(partial(self.judge, _group_of(group, members)), during)
            own: list[tuple[Any, dict[str, Any]]] = [
                (UserFilter(name), dict(e.filter.options))
                for name in e.filter.order
                if plugins.is_own(filters.FILTER, name)
            ]
            if e.filter.sample and plugins.is_own(SAMPLE_FILTER, e.filter.sample):
                options = {"max_tokens": self.cfg.rollout.max_new_tokens, **e.filter.options}
                own.append((SampleFilter(e.filter.sample), options))
            for function, options in own:
                await self._call(partial(self.pools.workers.run, function, _group_of(group, members), options), during)

    async def _learner_code(self) -> None:
        """Call a user's estimator and policy loss."""
        advantage, actor = self.cfg.algo.advantage, self.cfg.actor
        if plugins.is_own(ESTIMATOR, advantage.estimator):
            self.progress("the advantage estimator")
            for group in self.result.groups.values():
                for title, members in {"a group": group.valid, "a group of one": group.valid[:1]}.items():
                    if not members:
                        continue
                    masks = [t.is_model for t in members]
                    inputs = estimator_inputs([t.scored for t in members], masks, advantage.gamma, advantage.options)
                    tried = TriedEstimator(advantage.estimator)
                    await self._call(partial(self.pools.workers.run, tried, inputs), f"the advantages of {title}")
        if actor.own_loss:
            self.progress("the policy loss")
            workers = Workers(1, Limits(Deadline(TORCH_S, "the deadline")))
            workers.prepare = _import_torch
            try:
                loss = TriedLoss(actor.own_loss, actor.eps_clip_low_high, dict(actor.policy_loss_options))
                await self._call(lambda: workers.run(loss), "the policy loss")
            finally:
                workers.close()

    async def _call(self, call: Callable[[], Awaitable[Any]], during: str) -> None:
        try:
            await call()
        except TirError as error:
            in_user_code = isinstance(error, MethodError)
            self.result.failed(str(error), getattr(error, "user_traceback", ""), during, in_user_code=in_user_code)


@asynccontextmanager
async def started_servers(
    cfg: Config, result: Rehearsal, progress: Callable[[str], None]
) -> AsyncIterator[dict[str, list[str]] | None]:
    """Start the environments' servers as a run does; yield None if one builds an index, and that takes too long.

    Raises:
        ConfigError: A server cannot be started with these settings.
        EnvError: A server did not start in the time that a run gives it, or was killed.
    """
    from ...cluster.env_process import env_urls

    if cfg.rollout.agent == "external":
        yield {}
        return
    progress("starting the environments")
    has_index = any(e.server_info.builds_index and not e.urls for e in cfg.environments.values())
    async with AsyncExitStack() as kept:
        try:
            async with asyncio.timeout(INDEX_S if has_index else None):
                urls = await kept.enter_async_context(env_urls(cfg))
        except TimeoutError:
            result.notes.append(f"no episode was played: an environment did not start within {INDEX_S:g} s")
            result.untried = own_files.has_user_code(cfg)
            yield None
            return
        yield urls


def _group_of(group: Group, members: list[Trajectory]) -> Group:
    """Return a copy of the group with these trajectories, because an evaluation changes the group."""
    return Group(group.key, group.task, copy.deepcopy(members))


def _import_torch() -> None:
    import torch  # noqa: F401


def various(tasks: list[Task]) -> list[Task]:
    """Return the first row, the first of each other shape, and the next rows until there are enough.

    A bug that only some rows show, such as those without a column or with a label that is no number, is found so.
    """
    shapes: dict[Any, Task] = {}
    for task in tasks:
        shapes.setdefault(_shape((task.label, dict(task.meta), dict(task.extra))), task)
    chosen = list(shapes.values())[: 1 + MORE_SHAPES]
    for task in tasks:
        if len(chosen) > MORE_ROWS:
            break
        if not any(task is other for other in chosen):
            chosen.append(task)
    return chosen


def _shape(value: Any) -> Any:
    """Return what kind of value it is: the keys of a table with the kinds of their values, a number, text, nothing."""
    if isinstance(value, Mapping):
        return frozenset((str(key), _shape(inner)) for key, inner in value.items())
    if isinstance(value, tuple):
        return tuple(map(_shape, value))
    if isinstance(value, list):
        return ("list", _shape(value[0]) if value else None)
    if isinstance(value, str):
        if not value.strip():
            return "empty"
        return "number" if NUMBER.fullmatch(value.strip()) else "text"
    return type(value).__name__
