"""Workload: what an emulated cluster is asked to do. A TOML file -> lengths, latencies and verdicts, drawn from one
seed.

    Workload.read(path) -> engine, env and learner as numbers
    workload.script(key, sample) -> Script: the tokens of each segment, the tokens and seconds of each tool call
    workload.accepted(key, share) -> bool: whether the filters would keep the group

A draw depends on the seed, the prompt and the sample alone, never on the order of the calls: every mode, on either
clock, sees the same work. Times are emulated seconds; `time_scale` is the wall-clock seconds of one in a benchmark."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..config.toml_file import read_toml
from ..errors import ConfigError
from ..types import GroupKey

SEED_WORKLOAD = Path(__file__).with_name("workload_seed.toml")
"""The workload on which pipeline modes are compared; not to be tuned."""
TOOLS_WORKLOAD = SEED_WORKLOAD.with_name("workload_tools.toml")
"""Five slow tools and a tail to 16k tokens."""
PROMPT_TOKENS = 128
"""The file says nothing of prompts; they only add to prefill and KV."""
Z99 = 2.3263478740408408
"""Standard normal quantile of 0.99."""


@dataclass(frozen=True)
class Lognormal:
    """exp(N(ln median, sigma^2)), cut at `max`: a draw above it becomes `max`. sigma = ln(p99 / median) / z_0.99."""

    median: float
    p99: float
    max: float = math.inf

    @cached_property
    def mu(self) -> float:
        return math.log(self.median)

    @cached_property
    def sigma(self) -> float:
        return math.log(self.p99 / self.median) / Z99

    @property
    def mean(self) -> float:
        """E[min(X, max)] = e^{mu + s^2/2} Phi((ln max - mu - s^2)/s) + max (1 - Phi((ln max - mu)/s))."""
        mu, s = self.mu, self.sigma
        whole = math.exp(mu + s * s / 2)
        if math.isinf(self.max):
            return whole
        d = (math.log(self.max) - mu) / s
        return whole * _phi(d - s) + self.max * (1 - _phi(d))

    def draw(self, rng: random.Random) -> float:
        drawn = rng.lognormvariate(self.mu, self.sigma)
        return drawn if drawn < self.max else self.max


def _phi(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


@dataclass(frozen=True)
class EngineSpec:
    """One rollout engine. `decode_tokens_per_s` [(running, tokens/s in total)], linear between the points, constant
    beyond the last."""

    count: int
    max_running: int
    kv_tokens: int
    decode_tokens_per_s: tuple[tuple[float, float], ...]
    prefill_tokens_per_s: float
    weight_push_s: float

    def decode_rate(self, running: int) -> float:
        """Total tokens/s of `running` sequences decoded together."""
        points = self.decode_tokens_per_s
        i = bisect_left(points, (running, -math.inf))
        if i == len(points):
            return points[-1][1]
        (x1, y1), (x0, y0) = points[i], points[i - 1] if i else (0.0, 0.0)
        return y0 + (y1 - y0) * (running - x0) / (x1 - x0)

    @cached_property
    def saturated_tokens_per_s(self) -> float:
        """The most one engine decodes."""
        return max(
            self.decode_rate(n)
            for n in (*(int(x) for x, _ in self.decode_tokens_per_s if x <= self.max_running), self.max_running)
        )


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Share of groups that the filters keep, as training goes on. `jump`: `start` until half time, then `end`; else
    linear between them."""

    start: float
    end: float
    steps: int
    jump: bool = False

    def at(self, step: int) -> float:
        progress = min(1.0, step / max(1, self.steps - 1))
        if self.jump:
            return self.start if step < self.steps / 2 else self.end
        return self.start + (self.end - self.start) * progress


class Script(NamedTuple):
    """What one trajectory will do: segments[i] model tokens, then (but after the last) call i: latencies_s[i],
    observations[i] tokens."""

    segments: tuple[int, ...]
    observations: tuple[int, ...]
    latencies_s: tuple[float, ...]

    @property
    def model_tokens(self) -> int:
        return sum(self.segments)


@dataclass(frozen=True)
class Workload:
    seed: int
    time_scale: float
    prompts: int
    samples_per_prompt: int
    steps: int
    tool_calls: int
    response_tokens: Lognormal
    observation_tokens: Lognormal
    env_latency_s: Lognormal
    env_capacity: int
    engine: EngineSpec
    learner_seconds_per_step: float | Literal["match"]
    acceptance: Acceptance
    late: Acceptance
    """The late-training scenario: acceptance falls over `late.steps`."""
    jump: Acceptance
    """The other one: acceptance jumps at half time."""

    @classmethod
    def read(cls, path: Path) -> Workload:
        """Raises ConfigError for a file that is not a workload."""
        try:
            return cls._of(read_toml(path, "Workload"))
        except (TypeError, AttributeError, ValueError) as e:
            raise ConfigError(
                f"Workload {path} has a value of a wrong type: {e}."
                " openrlhf_tir/simulation/workload_seed.toml shows each."
            ) from None
        except KeyError as e:
            raise ConfigError(
                f"Workload {path} lacks {e}. openrlhf_tir/simulation/workload_seed.toml has every key."
            ) from None

    @classmethod
    def _of(cls, t: dict[str, Any]) -> Workload:
        engine, late, constant = t["engine"], t["late_training"], t["filter"]["acceptance"]
        if t["trajectory"]["segments"] != t["trajectory"]["tool_calls"] + 1:
            raise ConfigError(
                f"trajectory.segments = {t['trajectory']['segments']} and tool_calls = {t['trajectory']['tool_calls']}:"
                " the model writes before, between and after its calls, so segments is tool_calls + 1."
            )
        return cls(
            seed=t["seed"],
            time_scale=t["time_scale"],
            prompts=t["batch"]["prompts"],
            samples_per_prompt=t["batch"]["samples_per_prompt"],
            steps=t["batch"]["steps"],
            tool_calls=t["trajectory"]["tool_calls"],
            response_tokens=_lognormal(t["trajectory"]["response_tokens"]),
            observation_tokens=_lognormal(t["trajectory"]["observation_tokens"]),
            env_latency_s=_lognormal(t["env"]["latency_s"]),
            env_capacity=t["env"]["capacity"],
            engine=EngineSpec(
                **{
                    **engine,
                    "decode_tokens_per_s": tuple((float(n), float(rate)) for n, rate in engine["decode_tokens_per_s"]),
                }
            ),
            learner_seconds_per_step=t["learner"]["seconds_per_step"],
            acceptance=Acceptance(constant, constant, t["batch"]["steps"]),
            late=Acceptance(late["acceptance_from"], late["acceptance_to"], late["steps"]),
            jump=Acceptance(late["jump"][0], late["jump"][1], late["steps"], jump=True),
        )

    def with_batch(self, prompts: int, samples: int, *, engines: int | None = None) -> Workload:
        """The same cluster shape at another size."""
        engine = replace(self.engine, count=engines) if engines else self.engine
        return replace(self, prompts=prompts, samples_per_prompt=samples, engine=engine)

    def script(self, key: GroupKey, sample: int) -> Script:
        """Lengths and latencies of one trajectory; a group that is issued again does the same again."""
        rng = self._rng
        rng.seed(f"{self.seed}/{key.epoch}/{key.prompt}/{sample}")
        total = max(self.tool_calls + 1, round(self.response_tokens.draw(rng)))
        calls = range(self.tool_calls)
        cuts = sorted([rng.random() for _ in calls])
        segments = [int(total * (b - a)) or 1 for a, b in pairwise((0.0, *cuts, 1.0))]
        segments[-1] = max(1, segments[-1] + total - sum(segments))
        observations = [round(self.observation_tokens.draw(rng)) or 1 for _ in calls]
        return Script(tuple(segments), tuple(observations), tuple([self.env_latency_s.draw(rng) for _ in calls]))

    def accepted(self, key: GroupKey, share: float) -> bool:
        """Is the group kept when the filters keep `share` of all? Kept at some share, it is at every higher one."""
        self._rng.seed(f"{self.seed}/accept/{key.epoch}/{key.prompt}/{key.attempt}")
        return self._rng.random() < share

    @cached_property
    def _rng(self) -> random.Random:
        """Seeded anew for every draw, which is half the price of a new one."""
        return random.Random()

    @property
    def longest(self) -> int | None:
        """Model tokens of a response at most; None: no bound."""
        return None if math.isinf(self.response_tokens.max) else int(self.response_tokens.max)

    @property
    def group_tokens(self) -> float:
        """Expected model tokens of a group."""
        return self.samples_per_prompt * self.response_tokens.mean

    @property
    def saturated_groups_per_s(self) -> float:
        """Groups per emulated second when every engine decodes at its best: nothing rolls out faster."""
        return self.engine.count * self.engine.saturated_tokens_per_s / self.group_tokens


def _lognormal(table: dict[str, Any]) -> Lognormal:
    if table["dist"] != "lognormal":
        raise ConfigError(f"Distribution {table['dist']!r} is not known. Known: lognormal (median, p99, max).")
    return Lognormal(table["median"], table["p99"], table.get("max", math.inf))
