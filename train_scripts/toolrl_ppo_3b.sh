#!/usr/bin/env bash
# ToolRL 3B: its PPO baseline.
# One node of 8 GPUs: 4 learner ranks, 4 engines.
# Data: qiancheng0/ToolRL, dataset/rlla_4k: train.parquet.
#   toolrl_ppo_3b.sh --data.prompt_dataset train.parquet [any flag of `openrlhf-tir train`]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/train.sh" --recipe toolrl_ppo_3b "$@"
