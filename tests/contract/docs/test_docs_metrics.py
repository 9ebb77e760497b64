"""docs/metrics.md: every metric that a run logs is explained, and nothing that no run logs."""

from __future__ import annotations

import ast
import asyncio
import re
from dataclasses import replace

import numpy as np
import pytest

from openrlhf_tir.cluster.jobs.measured import EnvResult, EvalResult, HeldOut
from openrlhf_tir.config import Config
from openrlhf_tir.data import PromptStream
from openrlhf_tir.data.curriculum import Settings
from openrlhf_tir.pipeline.evaluation import Evaluator
from openrlhf_tir.pipeline.group_metrics import NOT_REWARD_PARTS, reward_parts
from openrlhf_tir.pipeline.observer import METRICS, Observer
from openrlhf_tir.pipeline.scheduler import AutoDepth, StalenessRule
from openrlhf_tir.pipeline.scheduler.learner_timing import LearnerTiming
from openrlhf_tir.pushes import PublishReport
from openrlhf_tir.types import KEEP, GroupKey, StepReport, Verdict
from tests.pipeline.fakes import group_of

from .docs_blocks import DOCS, REPO, glossary, unexplained

PARTS = ("format_ok", "length_used", "length_replacements", "length_first_done")
"""Some parts of rewards."""
STATS = dict.fromkeys((*NOT_REWARD_PARTS, *PARTS), 1.0) | {"calls_correct": 0.5, "calls_ok_correct": 0.5}
"""A group's stats with everything in it. Half of the calls are of correct samples, so that no ratio is 0 / 0."""


class Rows:
    """What would be written to metrics.jsonl."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def log(self, step, values):
        self.names |= set(values)

    def update(self, step, values):
        self.names |= set(values)

    evaluated = update

    def add(self, *span):
        """Spans are no metrics."""

    def group(self, *end):
        """Counts are no metrics."""

    def notice(self, lines):
        """Neither are words."""

    def truncate_after(self, step, evaluated=True):
        """Nothing to forget."""


@pytest.fixture
def logged(monkeypatch) -> set[str]:
    """Names of a step with everything in it, from the code that makes them."""
    from openrlhf_tir.algorithms.losses.diagnostics import MAXIMA, SUMS, Tally  # torch: every process would import it

    cfg, rows = Config(), Rows()
    observer = Observer(rows, rows, rows, envs=("guess", "sums"))
    meta = replace(group_of(GroupKey(0, 0), 0, KEEP)[0], env="guess")
    meta = replace(meta, stats={**meta.stats, **STATS}, failures={"timeout": 1}, masked=["silent", ""])
    observer.group_finished("buffered", meta, None)
    observer.group_finished("filtered", replace(meta, verdict=Verdict(False, "zero_variance")), None)
    observer.group_finished("failed", meta, "timeout")
    observer.group_finished("requeued", meta, "surplus")
    observer.selection.trained([meta])
    parts = ("map", "pause", "freeze", "begin", "load", "read_back", "resume", "canary", "score")
    of_parts = {"push_ipc": 1.0, "push_ipc_failed": 0.0} | {f"push_{part}_s": 0.1 for part in parts}
    observer.push_finished(PublishReport(version=0, seconds=0.1, digest="", canary_max_diff=0.0, parts=of_parts))

    async def phases() -> None:
        for phase in METRICS:
            with observer.phase(phase, 0):
                pass

        async def broken() -> dict[str, float]:
            raise OSError("down")

        monkeypatch.setattr("openrlhf_tir.pipeline.evaluation.TRIES", 1)
        await Evaluator(cfg, broken, observer, asyncio.TaskGroup()).evaluate(1)

    asyncio.run(phases())
    tally = Tally("cpu")
    for name, value in {"trained": 4.0, "sampled": 3.0, "lagging": 2.0, "weight": 4.0, "weight_sq": 4.0}.items():
        tally.sums[SUMS.index(name)] = value
    tally.gated += 1.0
    assert set(MAXIMA) <= tally.metrics().keys()
    depth = AutoDepth(StalenessRule(batch_groups=2), 2, LearnerTiming())
    report = StepReport(version=1, metrics=tally.metrics(), seconds=0.1, trained_tokens=4)
    observer.step_finished(report, batch_groups=2, rolling=0, buffered=0, extra=depth.metrics())
    guess = EnvResult(accuracy=0.5, code_ratio=0.5, calls=1.0, samples=2, failed=0, pass_at={2: 0.5})
    found = EvalResult(
        accuracy=0.5,
        code_ratio=0.5,
        format_ok=1.0,
        code_correct=0.5,
        samples=2,
        failed=0,
        pass_at={2: 0.5},
        pass_hat={2: 0.5},
        by_kind={"easy": (0.5, 0.5), "hard": (0.5, 0.5)},
        parts=reward_parts([meta]),
        by_env={"guess": guess},
    )
    evaluated = HeldOut.of(found, found).row
    curriculum = PromptStream(2, 0, curriculum=Settings(2, 0.5, 8.0, [(0.0, 1.0)] * 2)).facts()
    return rows.names | set(curriculum) | set(evaluated) | learner_and_engines()


def written_in(path: str, prefix: str) -> set[str]:
    """Constants of a file that are names with this prefix."""
    tree = ast.parse((REPO / "openrlhf_tir" / path).read_text())
    return {
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and re.fullmatch(prefix + r"\w+", n.value)
    }


def named(path: str, function: str) -> set[str]:
    """Keys of the dictionaries that a function makes."""
    tree = ast.parse((REPO / "openrlhf_tir" / path).read_text())
    (found,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function]
    return {k.value for n in ast.walk(found) if isinstance(n, ast.Dict) for k in n.keys if isinstance(k, ast.Constant)}


def learner_and_engines() -> set[str]:
    """What needs DeepSpeed or Ray: read from the source. The end-to-end tests look at rows of real runs."""
    from openrlhf_tir.learner.roles.auxiliary_models import value_metrics  # DeepSpeed: every process would import it

    of_a_critic = set(value_metrics(np.array([2.0, 1.0, 1.0, 3.0, 5.0, 1.0])))
    roles = written_in("learner/roles/auxiliary_models.py", "kl_") | written_in("learner/roles/critic.py", "critic_")
    roles |= of_a_critic
    learner = (
        written_in("learner/passes.py", "(passes|optimizer)_")
        | written_in("learner/zero3.py", "scoring_")
        | named("learner/utilisation.py", "gpu_metrics")
        | named("learner/zero3.py", "_update")
        | named("learner/updates/metrics.py", "over_updates")
        | roles
    )
    engines = named("cluster/rollout_actor.py", "load") | named("pipeline/router.py", "current_stats")
    engines |= named("pipeline/router.py", "total_stats")
    return learner | named("cluster/engine_pool.py", "engine_stats") | engines


@pytest.mark.slow
def test_every_metric_that_a_run_logs_is_in_the_glossary(logged):
    assert unexplained(logged) == []


@pytest.mark.slow
def test_every_metric_of_the_glossary_is_logged(logged):
    absent = [name for name in glossary() if not any(re.fullmatch(pattern(name), found) for found in logged)]
    assert absent == []


def pattern(name: str) -> str:
    return re.sub(r"<\w+>", r"[\\w.-]+", name)


def test_every_row_says_what_and_when_it_is_healthy():
    rows = [line for line in (DOCS / "metrics.md").read_text().splitlines() if line.startswith("| `")]
    assert len(glossary()) == len(set(glossary())) >= len(rows)
    assert all(len(row.split("|")) == 5 and row.split("|")[2].strip() for row in rows)
