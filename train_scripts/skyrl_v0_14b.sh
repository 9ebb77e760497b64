#!/usr/bin/env bash
# SkyRL-v0 14B: PPO on Qwen3-14B with thinking, 35 turns.
# Four nodes of 8 GPUs: 16 learner ranks, 8 engines over 2 GPUs each.
# Data: python -m env_servers.swe.make_tasks --count 300 --out swe.jsonl
#   HOSTS=head,worker1 skyrl_v0_14b.sh --data.prompt_dataset swe.jsonl --env.url URLS [any flag of `openrlhf-tir train`]
# URLS, with the same TIR_ENV_TOKEN in both environments: what `start_env_servers.sh -h ADDRESS -e swe -- --workers 16` prints.
# Inside a SLURM allocation HOSTS is not needed. train_scripts/setup_env.sh --gpu must have run on every node (launch_multinode.sh).
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch_multinode.sh" ${HOSTS:+--hosts "$HOSTS"} -- --recipe skyrl_v0_14b "$@"
