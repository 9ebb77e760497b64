#!/usr/bin/env bash
# OTC-PPO on ToRL 1.5B: fewer calls at the same accuracy.
# One node of 8 GPUs: 4 learner ranks, 4 engines.
# Data: as for torl_1_5b.
#   otc_ppo_torl.sh --data.prompt_dataset train.parquet [any flag of `openrlhf-tir train`]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/train.sh" --recipe otc_ppo_torl "$@"
