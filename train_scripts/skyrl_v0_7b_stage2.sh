#!/usr/bin/env bash
# SkyRL-v0 7B, stage 2: 25 turns, from the weights of stage 1.
# Two nodes of 8 GPUs: 8 learner ranks, 8 engines.
# Data: python -m env_servers.swe.make_tasks --count 300 --out swe.jsonl
#   HOSTS=head,worker1 skyrl_v0_7b_stage2.sh --data.prompt_dataset swe.jsonl --env.url URLS [any flag of `openrlhf-tir train`]
# URLS, with the same TIR_ENV_TOKEN in both environments: what `start_env_servers.sh -h ADDRESS -e swe -- --workers 16` prints.
# Inside a SLURM allocation HOSTS is not needed. train_scripts/setup_env.sh --gpu must have run on every node (launch_multinode.sh).
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch_multinode.sh" ${HOSTS:+--hosts "$HOSTS"} -- --recipe skyrl_v0_7b_stage2 "$@"
