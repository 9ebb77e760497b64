#!/usr/bin/env bash
# ZeroTIR 32B: the 7B recipe.
# Eight nodes of 8 GPUs: 32 learner ranks, 8 engines over 4 GPUs each.
# Data: as for zerotir_7b.
#   HOSTS=head,worker1 zerotir_32b.sh --data.prompt_dataset orz_math_57k_collected.json --env.url URLS [any flag of `openrlhf-tir train`]
# URLS, with the same TIR_ENV_TOKEN in both environments: what `start_env_servers.sh -h ADDRESS -n 4 -- --workers 16 --code-timeout 20` prints.
# Inside a SLURM allocation HOSTS is not needed. train_scripts/setup_env.sh --gpu must have run on every node (launch_multinode.sh).
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch_multinode.sh" ${HOSTS:+--hosts "$HOSTS"} -- --recipe zerotir_32b "$@"
