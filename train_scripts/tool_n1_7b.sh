#!/usr/bin/env bash
# Tool-N1 7B: GRPO with a binary reward.
# Two nodes of 8 GPUs: 8 learner ranks, 8 engines.
# Data: its own parquet, raw rows (tools, conversations, answer), or xLAM's (query, tools, answers).
#   HOSTS=head,worker1 tool_n1_7b.sh --data.prompt_dataset xlam.jsonl --env.url URLS [any flag of `openrlhf-tir train`]
# URLS, with the same TIR_ENV_TOKEN in both environments: what `start_env_servers.sh -h ADDRESS -e echo` prints.
# Inside a SLURM allocation HOSTS is not needed. train_scripts/setup_env.sh --gpu must have run on every node (launch_multinode.sh).
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch_multinode.sh" ${HOSTS:+--hosts "$HOSTS"} -- --recipe tool_n1_7b "$@"
