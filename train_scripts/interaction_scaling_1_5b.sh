#!/usr/bin/env bash
# Interaction scaling: ZeroTIR 1.5B with PPO and N calls at most. N = 4; the others by --env.max_calls N --run_dir runs/interaction_scaling_1_5b_N.
# One node of 8 GPUs: 4 learner ranks, 4 engines.
# Data: as for zerotir_7b.
#   interaction_scaling_1_5b.sh --data.prompt_dataset orz_math_57k_collected.json [any flag of `openrlhf-tir train`]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/train.sh" --recipe interaction_scaling_1_5b "$@"
