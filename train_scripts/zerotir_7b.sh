#!/usr/bin/env bash
# ZeroTIR 7B: Reinforce++-baseline on a base model, up to 4 calls.
# Two nodes of 8 GPUs: 8 learner ranks, 8 engines.
# Data: ORZ-57k or DAPO-17k, as published or as ZeroTIR's JSONL.
#   HOSTS=head,worker1 zerotir_7b.sh --data.prompt_dataset orz_math_57k_collected.json --env.url URLS [any flag of `openrlhf-tir train`]
# URLS, with the same TIR_ENV_TOKEN in both environments: what `start_env_servers.sh -h ADDRESS -n 4 -- --workers 16 --code-timeout 20` prints.
# Inside a SLURM allocation HOSTS is not needed. train_scripts/setup_env.sh --gpu must have run on every node (launch_multinode.sh).
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch_multinode.sh" ${HOSTS:+--hosts "$HOSTS"} -- --recipe zerotir_7b "$@"
