#!/usr/bin/env bash
# OTC-GRPO on Search-R1 7B: fewer searches at the same accuracy.
# Two nodes of 8 GPUs: 8 learner ranks, 8 engines.
# Data: as for search_r1_7b.
#   HOSTS=head,worker1 otc_grpo_search.sh --data.prompt_dataset train.parquet --env.url URLS [any flag of `openrlhf-tir train`]
# URLS, with the same TIR_ENV_TOKEN in both environments: what `start_env_servers.sh -h ADDRESS -e search -- --corpus corpus.jsonl` prints.
# Inside a SLURM allocation HOSTS is not needed. train_scripts/setup_env.sh --gpu must have run on every node (launch_multinode.sh).
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch_multinode.sh" ${HOSTS:+--hosts "$HOSTS"} -- --recipe otc_grpo_search "$@"
