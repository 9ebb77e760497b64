#!/usr/bin/env bash
# OTC-PPO on Search-R1 7B: fewer searches at the same exact match.
# Two nodes of 8 GPUs: 8 learner ranks, 8 engines.
# Data: as for search_r1_7b, and a corpus or a retriever.
#   HOSTS=head,worker1 otc_ppo_search.sh --data.prompt_dataset nq_hotpotqa.parquet --env.url URLS [any flag of `openrlhf-tir train`]
# URLS, with the same TIR_ENV_TOKEN in both environments: what `start_env_servers.sh -h ADDRESS -e search -- --corpus corpus.jsonl` prints.
# Inside a SLURM allocation HOSTS is not needed. train_scripts/setup_env.sh --gpu must have run on every node (launch_multinode.sh).
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch_multinode.sh" ${HOSTS:+--hosts "$HOSTS"} -- --recipe otc_ppo_search "$@"
