"""Describe the work of an emulated cluster: lengths, latencies and verdicts, drawn from the seed in a TOML file.

    Workload.read(path)             engine, environment and learner as numbers
    workload.script(key, sample)    the tokens of each segment, the tokens and seconds of each tool call
    workload.accepted(key, share)   whether the filters would keep the group

A draw depends on the seed, the prompt and the sample alone, never on the order of the calls, so that every mode sees
the same work on either clock. Times are emulated seconds; in a benchmark each of them lasts `time_scale` wall-clock
seconds.
"""

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
"""The workload on which pipeline modes are compared. It must not be tuned."""
PROMPT_TOKENS = 128
"""Tokens of every prompt. The file does not describe prompts, which only add to prefill and KV."""
Z99 = 2.3263478740408408
"""Standard normal quantile of 0.99."""


@dataclass(frozen=True)
class Lognormal:
    """The distribution exp(N(ln median, sigma^2)), sigma = ln(p99 / median) / z_0.99. Draws above `max` are cut."""

    median: float
    p99: float
    max: float = math.inf

    @cached_property
    def mu(self) -> float:
        """Mean of the logarithm."""
        return math.log(self.median)

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        return math.log(self.p99 / self.median) / Z99

    @property
    def mean(self) -> float:
        """E[min(X, max)] = e^{mu + s^2/2} Phi((ln max - mu - s^2)/s) + max (1 - Phi((ln max - mu)/s))."""
        mu = self.mu
        s = self.sigma
        unlimited = math.exp(mu + s * s / 2)
        if math.isinf(self.max):
            return unlimited
        d = (math.log(self.max) - mu) / s
        return unlimited * _phi(d - s) + self.max * (1 - _phi(d))

    def draw(self, rng: random.Random) -> float:
        """Return a random value."""
        value = rng.lognormvariate(self.mu, self.sigma)
        return value if value < self.max else self.max


def _phi(x: float) -> float:
    """Return the standard normal distribution function."""
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


@dataclass(frozen=True)
class EngineSpec:
    """Speed and size of the rollout engines, which are all alike.

    Attributes:
        count: Number of engines.
        max_running: Sequences that one engine decodes together at most.
        kv_tokens: Tokens that its KV cache holds.
        decode_tokens_per_s: Points (running sequences, tokens/s of all of them together). The rate is linear between
            the points and constant beyond the last.
        prefill_tokens_per_s: Tokens of context that it computes in a second.
        weight_push_s: Seconds for which a weight push stops it.
    """

    count: int
    max_running: int
    kv_tokens: int
    decode_tokens_per_s: tuple[tuple[float, float], ...]
    prefill_tokens_per_s: float
    weight_push_s: float

    def decode_rate(self, running: int) -> float:
        """Return the tokens/s of `running` sequences together."""
        points = self.decode_tokens_per_s
        i = bisect_left(points, (running, -math.inf))
        if i == len(points):
            return points[-1][1]
        x1, y1 = points[i]
        x0, y0 = points[i - 1] if i else (0.0, 0.0)
        return y0 + (y1 - y0) * (running - x0) / (x1 - x0)

    @cached_property
    def saturated_tokens_per_s(self) -> float:
        """Tokens/s that one engine decodes at most."""
        points = [int(running) for running, _ in self.decode_tokens_per_s if running <= self.max_running]
        return max(self.decode_rate(running) for running in (*points, self.max_running))


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Share of groups that the filters keep, as training goes on.

    Attributes:
        start: The share at the first step.
        end: The share at the last step.
        steps: Number of steps between them.
        jump: True: it is `start` for the first half and `end` for the second. False: it is linear between them.
    """

    start: float
    end: float
    steps: int
    jump: bool = False

    def at(self, step: int) -> float:
        """Return the share at a step."""
        progress = min(1.0, step / max(1, self.steps - 1))
        if self.jump:
            return self.start if step < self.steps / 2 else self.end
        return self.start + (self.end - self.start) * progress


class Script(NamedTuple):
    """What one trajectory will do. Every segment but the last is followed by a call of a tool.

    Attributes:
        segments: [calls + 1] model tokens.
        observations: [calls] tokens of the calls' results.
        latencies_s: [calls] seconds that the calls take.
    """

    segments: tuple[int, ...]
    observations: tuple[int, ...]
    latencies_s: tuple[float, ...]

    @property
    def model_tokens(self) -> int:
        """Model tokens of all segments."""
        return sum(self.segments)


@dataclass(frozen=True)
class Workload:
    """The work of a cluster, as a workload file has it.

    Attributes:
        seed: Seed of all draws.
        time_scale: Wall-clock seconds of an emulated second in a benchmark.
        prompts: Groups of a batch.
        samples_per_prompt: Samples of a group.
        steps: Steps of a run.
        tool_calls: Calls of each trajectory.
        response_tokens: Model tokens of a response.
        observation_tokens: Tokens of a call's result.
        env_latency_s: Seconds of a call.
        env_capacity: Calls that run at once in all environment servers.
        engine: The rollout engines.
        learner_seconds_per_step: Seconds of a learner step; "match": as long as the rollout of a batch.
        acceptance: Share of groups that the filters keep.
        late: The same in the scenario of late training: it falls over `late.steps`.
        jump: The same in another scenario: it changes at half time.
    """

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
    jump: Acceptance

    @classmethod
    def read(cls, path: Path) -> Workload:
        """Read a workload file.

        Raises:
            ConfigError: The file is not a workload.
        """
        try:
            return cls._of(read_toml(path, "Workload"))
        except (TypeError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"Workload {path} has a value of a wrong type: {error}."
                " openrlhf_tir/simulation/workload_seed.toml shows each."
            ) from None
        except KeyError as error:
            raise ConfigError(
                f"Workload {path} lacks {error}. openrlhf_tir/simulation/workload_seed.toml has every key."
            ) from None

    @classmethod
    def _of(cls, tables: dict[str, Any]) -> Workload:
        engine = tables["engine"]
        trajectory = tables["trajectory"]
        batch = tables["batch"]
        late = tables["late_training"]
        constant = tables["filter"]["acceptance"]
        if trajectory["segments"] != trajectory["tool_calls"] + 1:
            raise ConfigError(
                f"trajectory.segments = {trajectory['segments']} and tool_calls = {trajectory['tool_calls']}:"
                " the model writes before, between and after its calls, so segments is tool_calls + 1."
            )
        return cls(
            seed=tables["seed"],
            time_scale=tables["time_scale"],
            prompts=batch["prompts"],
            samples_per_prompt=batch["samples_per_prompt"],
            steps=batch["steps"],
            tool_calls=trajectory["tool_calls"],
            response_tokens=_lognormal(trajectory["response_tokens"]),
            observation_tokens=_lognormal(trajectory["observation_tokens"]),
            env_latency_s=_lognormal(tables["env"]["latency_s"]),
            env_capacity=tables["env"]["capacity"],
            engine=EngineSpec(
                **{
                    **engine,
                    "decode_tokens_per_s": tuple((float(n), float(rate)) for n, rate in engine["decode_tokens_per_s"]),
                }
            ),
            learner_seconds_per_step=tables["learner"]["seconds_per_step"],
            acceptance=Acceptance(constant, constant, batch["steps"]),
            late=Acceptance(late["acceptance_from"], late["acceptance_to"], late["steps"]),
            jump=Acceptance(late["jump"][0], late["jump"][1], late["steps"], jump=True),
        )

    def with_batch(self, prompts: int, samples: int, *, engines: int | None = None) -> Workload:
        """Return the workload with another batch, and another number of engines if `engines` is given."""
        engine = replace(self.engine, count=engines) if engines else self.engine
        return replace(self, prompts=prompts, samples_per_prompt=samples, engine=engine)

    def script(self, key: GroupKey, sample: int) -> Script:
        """Return the lengths and latencies of one trajectory. A group that is issued again has the same ones."""
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
        """Return True if the group is kept when the filters keep `share` of all groups.

        A group that is kept at some share is kept at every higher one.
        """
        self._rng.seed(f"{self.seed}/accept/{key.epoch}/{key.prompt}/{key.attempt}")
        return self._rng.random() < share

    @cached_property
    def _rng(self) -> random.Random:
        """The generator, which is seeded for every draw. That takes half the time of creating a new one."""
        return random.Random()

    @property
    def longest(self) -> int | None:
        """Model tokens of the longest response possible; None if there is no bound."""
        return None if math.isinf(self.response_tokens.max) else int(self.response_tokens.max)

    @property
    def group_tokens(self) -> float:
        """Expected model tokens of a group."""
        return self.samples_per_prompt * self.response_tokens.mean

    @property
    def saturated_groups_per_s(self) -> float:
        """Groups per emulated second if every engine decodes at its saturated rate. No rollout is faster."""
        return self.engine.count * self.engine.saturated_tokens_per_s / self.group_tokens


def _lognormal(table: dict[str, Any]) -> Lognormal:
    """Return the distribution of one table of a workload file."""
    if table["dist"] != "lognormal":
        raise ConfigError(f"Distribution {table['dist']!r} is not known. Known: lognormal (median, p99, max).")
    return Lognormal(table["median"], table["p99"], table.get("max", math.inf))
