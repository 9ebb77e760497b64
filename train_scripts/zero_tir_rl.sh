#!/usr/bin/env bash
# ZERO-TIR-RL: 100 updates without the environment mask, then with it (--train.env_mask_from says when).
# Two nodes of 8 GPUs: 8 learner ranks, 8 engines.
# Data: ORZ-57k and DAPO-17k together: several names, separated by commas.
#   HOSTS=head,worker1 zero_tir_rl.sh --data.prompt_dataset orz_math_57k_collected.json,dapo.parquet --env.url URLS [any flag of `openrlhf-tir train`]
# URLS, with the same TIR_ENV_TOKEN in both environments: what `start_env_servers.sh -h ADDRESS -n 4 -- --workers 16 --code-timeout 20` prints.
# Inside a SLURM allocation HOSTS is not needed. train_scripts/setup_env.sh --gpu must have run on every node (launch_multinode.sh).
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch_multinode.sh" ${HOSTS:+--hosts "$HOSTS"} -- --recipe zero_tir_rl "$@"
