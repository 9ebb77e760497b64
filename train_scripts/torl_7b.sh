#!/usr/bin/env bash
# ToRL 7B: GRPO on Qwen2.5-Math-7B, one call.
# Two nodes of 8 GPUs: 8 learner ranks, 8 engines.
# Data: GAIR-NLP/ToRL, data/torl_data: train.parquet, test.parquet.
#   HOSTS=head,worker1 torl_7b.sh --data.prompt_dataset train.parquet [any flag of `openrlhf-tir train`]
# Inside a SLURM allocation HOSTS is not needed. train_scripts/setup_env.sh --gpu must have run on every node (launch_multinode.sh).
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch_multinode.sh" ${HOSTS:+--hosts "$HOSTS"} -- --recipe torl_7b "$@"
