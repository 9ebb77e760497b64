#!/usr/bin/env bash
# ToRL 1.5B: GRPO on Qwen2.5-Math-1.5B, one call.
# One node of 8 GPUs: 4 learner ranks, 4 engines.
# Data: GAIR-NLP/ToRL, data/torl_data: train.parquet, test.parquet.
#   torl_1_5b.sh --data.prompt_dataset train.parquet [any flag of `openrlhf-tir train`]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/train.sh" --recipe torl_1_5b "$@"
