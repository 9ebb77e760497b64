#!/usr/bin/env bash
# ARTIST 7B, function calling with state.
# Two nodes of 8 GPUs: 8 learner ranks, 8 engines.
# Data: python -m env_servers.functions.make_tasks --count 200 --calls 1 3 --distractors 4 --out functions.jsonl
#   HOSTS=head,worker1 artist_functions_7b.sh --data.prompt_dataset functions.jsonl --env.url URLS [any flag of `openrlhf-tir train`]
# URLS, with the same TIR_ENV_TOKEN in both environments: what `start_env_servers.sh -h ADDRESS -e functions` prints.
# Inside a SLURM allocation HOSTS is not needed. train_scripts/setup_env.sh --gpu must have run on every node (launch_multinode.sh).
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch_multinode.sh" ${HOSTS:+--hosts "$HOSTS"} -- --recipe artist_functions_7b "$@"
