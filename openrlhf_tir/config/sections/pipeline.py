"""How rollout and training overlap."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from .base import Section


class Pipeline(Section):
    mode: Literal["sync", "one_step", "pipeline", "pipeline_drain"] = Field(
        "pipeline",
        description=(
            "how rollout and training overlap; as a flag it undoes a recipe's max_staleness,"
            " depth, push_every and fill_batches for another mode"
        ),
    )
    max_staleness: int | None = Field(
        None,
        ge=0,
        description=(
            "S: learner version - token version <= S at every update; default by mode: 0, 1, 4, 1 batches ahead. A"
            " batch that is cut into k updates ages what rolls by k, so that S updates allow (S + 1) / k - 1 batches"
            " ahead, rounded down"
        ),
    )
    push_every: int = Field(
        1,
        ge=1,
        description=(
            "engines get new weights every so many batches (and before an evaluation); between two pushes staleness"
            " grows: at most S + 1 of one update"
        ),
    )
    depth: int | Literal["auto"] | None = Field(
        None,
        description=(
            "a number: groups rolling + buffered at most, up to (S+1)*B, the default of pipeline_drain; auto, the"
            " default of pipeline: as many as keep learner and engines busy, from measured acceptance, latency and"
            " queues, so that tokens are seldom S old; above (S+1)*B when the filters reject most"
        ),
    )
    fill_batches: int = Field(
        1,
        ge=1,
        description=(
            "batches of accepted groups that are rolled before the first step of the run, so that the learner finds the"
            " next one ready from the start; at most as many as max_staleness has room for, S + 1 of one update each."
            " Needs mode pipeline or pipeline_drain"
        ),
    )
    fast_lane: int | Literal["auto", "off"] = Field(
        "off",
        description=(
            "engines that get no new groups and are kept at few sequences, so that they decode each faster: responses"
            " that would keep the staleness gate waiting go on there, token for token; auto: as many as shorten a step,"
            " often none, at most half; a number: so many; simulated and tested on the deterministic engine, not yet"
            " measured with vLLM, hence off"
        ),
    )
    early_accumulation: Literal["on", "off"] = Field(
        "off",
        description=(
            "on: the learner begins on the groups of a batch that are there while its last ones, the longest responses,"
            " still roll; only the optimiser's step waits for them, so that they have longer until the staleness gate;"
            " the same gradient but for rounding. For estimators that compare within a group (group_norm, dr_grpo,"
            " rloo, opo), one update per batch, mode pipeline"
        ),
    )
    kv_after_push: Literal["recompute", "keep"] = Field(
        "recompute",
        description=(
            "what a push in flight leaves of the responses that engines are writing: recompute: their prefixes are"
            " computed again with the new weights; keep: their KV cache stays, so that a push costs no prefill, and"
            " what follows is sampled over a prefix that older weights have read, at most S versions old. Log-probs"
            " are those that were sampled with, either way. What begins after the push shares no cache with what began"
            " before. Needs mode pipeline"
        ),
    )
    stall_timeout_s: float | None = Field(
        None,
        gt=0,
        description=(
            "no group and no step for so long: say which edge is blocked, and abort;"
            " default: rollout.group_deadline_s + 600"
        ),
    )

    @field_validator("depth", mode="before")
    @classmethod
    def _depth_is_a_number_or_auto(cls, v: Any) -> Any:
        """One sentence instead of pydantic's one per member of the union."""
        if v is None or v == "auto" or (str(v).isdecimal() and int(v) > 0):
            return v
        raise ValueError(
            f"pipeline.depth = {v!r} is neither a number of groups (1 or more) nor 'auto'."
            " Use one of them, or leave it unset."
        )

    @field_validator("fast_lane", mode="before")
    @classmethod
    def _fast_lane_is_a_number_or_a_word(cls, v: Any) -> Any:
        if v in ("auto", "off") or (str(v).isdecimal() and int(v) > 0):
            return v
        raise ValueError(
            f"pipeline.fast_lane = {v!r} is neither a number of engines (1 or more) nor 'auto' nor 'off'."
            " Use one of them."
        )

    @property
    def S(self) -> int:
        """As asked for; what follows of it and a batch's updates: Config.max_staleness and Config.batches_ahead."""
        default = {"sync": 0, "one_step": 1, "pipeline": 4, "pipeline_drain": 1}[self.mode]
        return default if self.max_staleness is None else self.max_staleness

    @property
    def drain(self) -> bool:
        """Whether running groups finish before a weight push (else: pause, push, resume in flight)."""
        return self.mode != "pipeline"

    @property
    def keeps_kv(self) -> bool:
        """Whether a push leaves the KV cache of what is being written."""
        return self.kv_after_push == "keep"

    @model_validator(mode="after")
    def _modes_are_presets(self) -> Pipeline:
        fixed = {"sync": 0, "one_step": 1}.get(self.mode)
        if fixed is not None and fixed != self.S:
            raise ValueError(
                f"pipeline.max_staleness = {self.S} does not go with pipeline.mode = '{self.mode}', which means"
                f" {fixed}. Leave it unset or set it to {fixed}, or use mode = 'pipeline'."
            )
        if fixed is None and self.S < 1:
            raise ValueError(
                f"pipeline.mode = '{self.mode}' overlaps rollout and training, which needs max_staleness >= 1 (it is"
                f" {self.S}). Use mode = 'sync' for staleness 0."
            )
        if self.keeps_kv and self.drain:
            raise ValueError(
                f"pipeline.kv_after_push = 'keep' does not go with pipeline.mode = '{self.mode}', whose pushes wait for"
                " every running group: no KV cache is in use then. Leave it unset, or use mode = 'pipeline'."
            )
        if self.push_every > self.S + 1:
            raise ValueError(
                f"pipeline.push_every = {self.push_every}: the last update before a push would train tokens"
                f" {self.push_every - 1} versions old, and max_staleness is {self.S}."
                f" Use push_every <= {self.S + 1}, or raise max_staleness."
            )
        return self
