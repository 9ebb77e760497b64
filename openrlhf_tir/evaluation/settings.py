"""Settings: under what a set is sampled. Items made under other settings are never mixed with these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import ConfigError, unknown

SWEPT = {
    "env.max_calls": "max_calls",
    "eval.n_samples_per_prompt": "n",
    "eval.temperature": "temperature",
    "eval.top_p": "top_p",
}
"""What a sweep may vary without new engines: the key of the configuration -> the field here."""
WHERE_AND_WHEN = {
    *(
        "url",
        "token_env",
        "step_timeout_s",
        "reset_timeout_s",
        "capacity_timeout_s",
        "outage_timeout_s",
        "hedge_after_s",
        "max_retries",
    ),
    *("max_concurrency", "batch_wait_ms", "max_batch", "workers"),
    *(
        "remote_timeout_s",
        "remote_retries",
        "remote_batch",
        "verify_deadline_s",
        "model_replicas",
        "num_nodes",
        "offload",
        "model_timeout_s",
    ),
    "max_failed_groups",
}
"""Fields of [env] and [reward] that never change what an item is: whatever they cost is a lost sample, and those are
sampled again. Every other field counts, also one that is added to these sections later."""
WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True, slots=True)
class Sampled:
    """How a problem is sampled. `max_calls` None: as the environment of the problem says."""

    n: int
    temperature: float
    top_p: float = 1.0
    max_calls: int | None = None

    @classmethod
    def of(cls, cfg: Config) -> Sampled:
        return cls(cfg.eval.n_samples_per_prompt, cfg.eval.temperature, cfg.eval.top_p, cfg.eval.max_calls)


def parse_sweep(text: str, base: Sampled) -> tuple[str, list[Sampled]]:
    """`KEY=V,V,...` -> the key and the settings of each value, in ascending order. Raises ConfigError for a key or a
    value that cannot be swept."""
    key, _, given = text.partition("=")
    if key not in SWEPT:
        raise unknown("--sweep key", key, SWEPT, "Write it as KEY=V,V, e.g. --sweep env.max_calls=0,2,4,20.")
    kind = int if key in ("env.max_calls", "eval.n_samples_per_prompt") else float
    try:
        values = sorted({kind(v) for v in given.split(",")})
    except ValueError:
        raise ConfigError(
            f"--sweep {text!r} names a value of {key} that is no number. Write e.g. --sweep env.max_calls=0,2,4,20."
        ) from None
    lowest = {"env.max_calls": 0, "eval.n_samples_per_prompt": 1}.get(key, 0)
    bad = [v for v in values if not (lowest <= v < float("inf")) or (key == "eval.top_p" and not 0 < v <= 1)]
    if bad:
        raise ConfigError(f"--sweep {text!r}: {bad[0]} is no value of {key}. Correct it.")
    if len(values) < 2:
        raise ConfigError(f"--sweep {text!r} has one value. Give two or more, or set --{key}.")
    change: Callable[..., Sampled] = replace
    return key, [change(base, **{SWEPT[key]: v}) for v in values]


def made_under(cfg: Config, how: Sampled, suite: str, source: str) -> dict[str, Any]:
    """Everything that decides what an item is; JSON can hold it. `source`: a digest of the problems."""
    return {
        "suite": suite,
        "problems": source,
        "model": cfg.actor.model_name_or_path,
        "weights": weights_of(cfg.actor.model_name_or_path),
        **asdict(how),
        "seed": cfg.train.seed,
        "max_new_tokens": cfg.rollout.max_new_tokens,
        "max_len": cfg.data.max_len,
        "input_template": cfg.data.input_template,
        "apply_chat_template": cfg.data.apply_chat_template,
        "rendered": cfg.data.rendered,
        "chat_template_options": dict(cfg.data.chat_template_options),
        "agent": [cfg.rollout.agent, cfg.train.agent_func_path],
        "engine": [cfg.rollout.engine, cfg.vllm.dtype, cfg.vllm.max_model_len],
        "engine_args": dict(cfg.vllm.engine_args),
        "env": {
            name: {
                **e.env.model_dump(mode="json", exclude=WHERE_AND_WHEN),
                "max_calls": e.env.max_calls if how.max_calls is None else how.max_calls,
                "input_template": e.input_template,
                "reward": e.reward.model_dump(mode="json", exclude=WHERE_AND_WHEN),
            }
            for name, e in sorted(cfg.environments.items())
        },
    }


def weights_of(model: str) -> list[list[Any]]:
    """[name, bytes, modification time] of each file of weights of a local model: one that was trained on is another
    model. [] for a name on the hub."""
    found = sorted(p for pattern in WEIGHTS for p in Path(model).expanduser().glob(pattern)) if model else []
    return [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in found]


def differences(now: Mapping[str, Any], then: Mapping[str, Any], where: str = "") -> list[str]:
    """`key: was, is now` of everything that differs, nested keys dotted."""
    out = []
    for key in sorted({*now, *then}):
        a, b = then.get(key), now.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            out += differences(b, a, f"{where}{key}.")
        elif a != b:
            out.append(f"{where}{key}: {a!r} then, {b!r} now")
    return out
