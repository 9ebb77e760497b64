#!/usr/bin/env bash
# Search-R1 7B: GRPO with a search engine. A retriever for 21 million passages belongs on a machine of its own: --env.url.
# Two nodes of 8 GPUs: 8 learner ranks, 8 engines.
# Data: NQ and HotpotQA, Search-R1's rows or FlashRAG's.
#   HOSTS=head,worker1 search_r1_7b.sh --data.prompt_dataset train.parquet --env.url URLS [any flag of `openrlhf-tir train`]
# URLS, with the same TIR_ENV_TOKEN in both environments: what `start_env_servers.sh -h ADDRESS -e search -- --corpus corpus.jsonl` prints.
# Inside a SLURM allocation HOSTS is not needed. train_scripts/setup_env.sh --gpu must have run on every node (launch_multinode.sh).
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch_multinode.sh" ${HOSTS:+--hosts "$HOSTS"} -- --recipe search_r1_7b "$@"
