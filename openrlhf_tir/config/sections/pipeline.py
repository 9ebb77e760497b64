"""How rollout and training overlap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import field_validator, model_validator

from ..setting import About, Fault, Resume, rule, setting
from . import early_accumulation
from .base import Section
from .conditions import WITH_VLLM

if TYPE_CHECKING:
    from ..schema import Config

Mode = Literal["sync", "one_step", "pipeline", "pipeline_drain"]


class ModePlan(NamedTuple):
    """What a value of pipeline.mode means. Config.batches_ahead, max_staleness and depth_groups combine it with other
    settings.

    Attributes:
        batches_ahead: Batches that rollout may be ahead of training if pipeline.max_staleness is unset.
        is_preset: True if no other max_staleness is possible, and exactly one batch is rolled at a time.
        drain: True if running groups finish before a weight push; else a push pauses and resumes them.
        depth: What limits the groups under way if pipeline.depth is unset.
    """

    batches_ahead: int
    is_preset: bool
    drain: bool
    depth: Literal["one_batch", "max_staleness", "auto"]


MODES: Mapping[Mode, ModePlan] = {
    "sync": ModePlan(batches_ahead=0, is_preset=True, drain=True, depth="one_batch"),
    "one_step": ModePlan(batches_ahead=1, is_preset=True, drain=True, depth="one_batch"),
    "pipeline": ModePlan(batches_ahead=4, is_preset=False, drain=False, depth="auto"),
    "pipeline_drain": ModePlan(batches_ahead=1, is_preset=False, drain=True, depth="max_staleness"),
}


def _is_count(value: Any) -> bool:
    """Return True for a whole number of 1 or more, also as text of any length."""
    digits = str(value)
    return digits.isdecimal() and digits.strip("0") != ""


class Pipeline(Section):
    """How rollout and training overlap."""

    mode: Mode = setting(
        "pipeline",
        description=(
            "How rollout and training overlap: not at all (sync), by one batch (one_step), continuously with weight"
            " pushes in flight (pipeline), or continuously with pushes that wait for running groups (pipeline_drain)."
            " As a flag it resets max_staleness, depth, push_every and fill_batches of a recipe with another mode."
        ),
        short="how rollout and training overlap",
    )
    max_staleness: int | None = setting(
        None,
        ge=0,
        description=(
            "Largest allowed difference between the learner's version and the version that sampled a token, at every"
            " update. Unset: 0, 1, 4 or 1 batches ahead, by mode. With k updates per batch, max_staleness allows"
            " (max_staleness + 1) // k - 1 batches ahead. The learner waits for the oldest group, so that none gets"
            " too old; only depth = 'auto' may leave one over, whose prompt is sampled again (docs/architecture.md)."
        ),
        unit="updates",
        resume=Resume("allowed", "if it and the mode amount to the same staleness; refused otherwise"),
    )
    push_every: int = setting(
        1,
        ge=1,
        description=(
            "Push new weights to the engines every so many batches, and before an evaluation. Rare pushes cost less"
            " time and train older tokens: at most max_staleness + 1 batches of one update."
        ),
        unit="batches",
    )
    depth: int | Literal["auto"] | None = setting(
        None,
        description=(
            "Groups that are rolling or buffered at most. auto: as many as keep learner and engines busy, from measured"
            " acceptance, latency and queues, and more than max_staleness has room for while the filters reject most."
            " Unset: auto in mode pipeline, one batch in sync and one_step, all that max_staleness allows in"
            " pipeline_drain."
        ),
        unit="groups",
    )
    fill_batches: int = setting(
        1,
        ge=1,
        description=(
            "Batches of accepted groups to roll before the first step of the run, so that the learner finds the next"
            " one ready from the start. At most what max_staleness has room for; needs mode pipeline or pipeline_drain."
        ),
        unit="batches",
    )
    fast_lane: int | Literal["auto", "off"] = setting(
        "off",
        description=(
            "Engines that get no new groups and finish the longest responses of the others at few sequences, token for"
            " token, so that these do not keep the staleness gate waiting. auto: as many as shorten a step, at most"
            " half. Simulated and tested on the deterministic engine, not yet measured with vLLM."
        ),
        unit="engines",
    )
    early_accumulation: Literal["on", "off"] = setting(
        "off",
        description=(
            "on: the learner begins on the groups of a batch that are there while its last ones still roll; only the"
            " optimiser's step waits for these. The gradient is the same but for rounding. Needs mode pipeline, one"
            " update per batch and an estimator that needs no more than a group (docs/algorithms.md)."
        ),
    )
    kv_after_push: Literal["recompute", "keep"] = setting(
        "recompute",
        description=(
            "What happens to the KV cache of running responses at a push in flight. recompute: their prefixes are"
            " computed again with the new weights. keep: the cache stays, so that a push costs no prefill, and the rest"
            " is sampled over a prefix that older weights have read. Log-probs are those of the sampling policy either"
            " way. Needs mode pipeline."
        ),
        active_when=WITH_VLLM,
    )

    @field_validator("depth", mode="before")
    @classmethod
    def _depth_is_a_number_or_auto(cls, value: Any) -> Any:
        """Report one error where pydantic reports one for each member of the union."""
        if value in (None, "auto") or _is_count(value):
            return value
        raise ValueError(
            f"pipeline.depth = {value!r} is neither a number of groups (1 or more) nor 'auto'."
            " Use one of them, or leave it unset."
        )

    @field_validator("fast_lane", mode="before")
    @classmethod
    def _fast_lane_is_a_number_or_a_word(cls, value: Any) -> Any:
        if value in ("auto", "off") or _is_count(value):
            return value
        raise ValueError(
            f"pipeline.fast_lane = {value!r} is neither a number of engines (1 or more) nor 'auto' nor 'off'."
            " Use one of them."
        )

    @property
    def plan(self) -> ModePlan:
        """What the mode means."""
        return MODES[self.mode]

    @property
    def requested_staleness(self) -> int:
        """max_staleness, or the mode's batches ahead if it is unset."""
        return self.plan.batches_ahead if self.max_staleness is None else self.max_staleness

    @property
    def drain(self) -> bool:
        """True if running groups finish before a weight push (ModePlan)."""
        return self.plan.drain

    @property
    def keeps_kv(self) -> bool:
        """True if a push leaves the KV cache of running responses."""
        return self.kv_after_push == "keep"

    @model_validator(mode="after")
    def _modes_are_presets(self) -> Pipeline:
        staleness = self.requested_staleness
        preset = self.plan.batches_ahead
        if self.plan.is_preset and preset != staleness:
            raise ValueError(
                f"pipeline.max_staleness = {staleness} does not go with pipeline.mode = '{self.mode}', which means"
                f" {preset}. Leave it unset or set it to {preset}, or use mode = 'pipeline'."
            )
        if not self.plan.is_preset and staleness < 1:
            raise ValueError(
                f"pipeline.mode = '{self.mode}' overlaps rollout and training, which needs max_staleness >= 1 (it is"
                f" {staleness}). Use mode = 'sync' for staleness 0."
            )
        if self.keeps_kv and self.drain:
            raise ValueError(
                f"pipeline.kv_after_push = 'keep' does not go with pipeline.mode = '{self.mode}', whose pushes wait for"
                " every running group: no KV cache is in use then. Leave it unset, or use mode = 'pipeline'."
            )
        if self.push_every > staleness + 1:
            raise ValueError(
                f"pipeline.push_every = {self.push_every}: the last update before a push would train tokens"
                f" {self.push_every - 1} versions old, and max_staleness is {staleness}."
                f" Use push_every <= {staleness + 1}, or raise max_staleness."
            )
        return self


ALONE = Pipeline(mode="sync")
"""The pipeline of a command that starts learner ranks or engines alone: nothing computes beside them."""


@rule("pipeline.max_staleness")
def staleness_covers_the_updates_of_a_batch(c: Config) -> Iterator[Fault]:
    """Check batches of several updates; for one update the section's own checks are enough."""
    per_batch = c.updates_per_batch
    if per_batch == 1:
        return
    mode = c.pipeline.mode
    needed_ahead = 0 if mode == "sync" else 1
    needed = (needed_ahead + 1) * per_batch - 1
    push_every = c.pipeline.push_every
    if c.batches_ahead < needed_ahead:
        yield (
            f"pipeline.max_staleness = {c.pipeline.requested_staleness} updates are too few: a batch makes {per_batch}"
            f" ({c.updates_per_batch_in_words}), so in mode '{mode}' its last update trains tokens that are {needed}"
            f" updates old. Use {needed} or more, leave it unset, or make fewer updates per batch."
        )
    elif push_every > c.batches_ahead + 1:
        yield About(
            "pipeline.push_every",
            f"pipeline.push_every = {push_every} batches of {per_batch} updates ({c.updates_per_batch_in_words}): the"
            f" last one before a push would train tokens {push_every * per_batch - 1} updates old, and"
            f" pipeline.max_staleness allows {c.max_staleness}. Use push_every <= {c.batches_ahead + 1}, or raise"
            " max_staleness.",
        )


@rule("pipeline.depth")
def depth_fits_batch_and_staleness(c: Config) -> Iterator[Fault]:
    depth = c.pipeline.depth
    batch = c.rollout.batch_size
    if depth is not None and c.pipeline.plan.is_preset:
        yield (
            f"pipeline.depth does not go with pipeline.mode = '{c.pipeline.mode}',"
            " which rolls exactly one batch. Leave it unset."
        )
    elif isinstance(depth, int) and depth < batch:
        yield (
            f"pipeline.depth = {depth} groups can never fill a batch of rollout.batch_size = {batch}. Use at least"
            f" {batch}."
        )
    elif isinstance(depth, int) and depth > (most := (c.batches_ahead + 1) * batch):
        per_batch = c.updates_per_batch
        yield (
            f"pipeline.depth = {depth} groups is more than staleness allows: (max_staleness + 1)"
            f" {f'/ {per_batch} updates per batch ' if per_batch > 1 else ''}* rollout.batch_size ="
            f" ({c.batches_ahead} + 1) * {batch} = {most}. Lower it, raise pipeline.max_staleness, or use 'auto'."
        )


@rule("pipeline.fill_batches")
def first_batches_have_room(c: Config) -> Iterator[Fault]:
    batches = c.pipeline.fill_batches
    depth = c.pipeline.depth
    if batches == 1:
        return
    if c.pipeline.plan.is_preset:
        yield (
            f"pipeline.fill_batches = {batches} does not go with pipeline.mode = '{c.pipeline.mode}', which rolls one"
            " batch at a time. Leave it out, or use mode pipeline or pipeline_drain."
        )
    elif batches > c.batches_ahead + 1:
        yield (
            f"pipeline.fill_batches = {batches} is more than staleness has room for, {c.batches_ahead + 1} batches."
            " Lower it, or raise pipeline.max_staleness."
        )
    elif isinstance(depth, int) and depth < batches * c.rollout.batch_size:
        yield (
            f"pipeline.fill_batches = {batches} batches of {c.rollout.batch_size} groups never fill, as pipeline.depth"
            f" = {depth} groups may be under way. Use pipeline.depth >= {batches * c.rollout.batch_size}, or leave it"
            " out."
        )


@rule("pipeline.fast_lane")
def fast_lane_has_work_and_engines(c: Config) -> Iterator[Fault]:
    lane = c.pipeline.fast_lane
    engines = c.vllm.num_engines
    if lane == "off":
        return
    if c.pipeline.drain:
        yield (
            f"pipeline.fast_lane = {lane!r} does not go with pipeline.mode = '{c.pipeline.mode}', whose pushes wait for"
            " every running group: no response keeps a gate waiting. Leave it off, or use mode = 'pipeline'."
        )
    if isinstance(lane, int) and lane >= engines:
        remedy = f"Use at most {engines - 1}, or 'auto'." if engines > 1 else "A fast lane needs a second engine."
        yield (
            f"pipeline.fast_lane = {lane} engines, and vllm.num_engines = {engines}: at least one must take new groups."
            f" {remedy}"
        )
    if lane == "auto" and engines < 2:
        yield f"pipeline.fast_lane = 'auto' needs a second engine, and vllm.num_engines = {engines}. Leave it off."
    if c.by_agent:
        yield (
            f"pipeline.fast_lane = {lane!r} moves the responses of our own turn loop,"
            " and here agents write them. Leave it off."
        )


rule("pipeline.early_accumulation")(early_accumulation.a_part_of_a_batch_can_be_trained)
rule("pipeline.early_accumulation", reads_estimator=True)(early_accumulation.a_group_has_its_advantages)
