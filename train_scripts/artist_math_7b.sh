#!/usr/bin/env bash
# ARTIST 7B, maths.
# Two nodes of 8 GPUs: 8 learner ranks, 8 engines.
# Data: JSONL {"prompt", "label"}; the paper takes 20,000 problems, mostly of NuminaMath.
#   HOSTS=head,worker1 artist_math_7b.sh --data.prompt_dataset numina.jsonl --env.url URLS [any flag of `openrlhf-tir train`]
# URLS, with the same TIR_ENV_TOKEN in both environments: what `start_env_servers.sh -h ADDRESS -n 4 -- --workers 16 --code-timeout 10` prints.
# Inside a SLURM allocation HOSTS is not needed. train_scripts/setup_env.sh --gpu must have run on every node (launch_multinode.sh).
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch_multinode.sh" ${HOSTS:+--hosts "$HOSTS"} -- --recipe artist_math_7b "$@"
