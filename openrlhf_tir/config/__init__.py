"""Configuration: what a recipe (TOML) or a dotted flag can set, and how one becomes a `Config`. See schema.py."""

from .schema import (
    Actor,
    Advantage,
    Algo,
    Ckpt,
    Config,
    Critic,
    Data,
    Ds,
    Env,
    Eval,
    Filter,
    Kl,
    Logger,
    LoggerWandb,
    Lora,
    Pipeline,
    Ref,
    Reward,
    Rollout,
    Section,
    Train,
    Vllm,
)

__all__ = [
    "Actor", "Advantage", "Algo", "Ckpt", "Config", "Critic", "Data", "Ds", "Env", "Eval", "Filter", "Kl", "Logger",
    "LoggerWandb", "Lora", "Pipeline", "Ref", "Reward", "Rollout", "Section", "Train", "Vllm",
]  # fmt: skip
