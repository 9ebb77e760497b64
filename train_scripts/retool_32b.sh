#!/usr/bin/env bash
# ReTool 32B: RL after a cold start; give its checkpoint with --actor.model_name_or_path.
# Eight nodes of 8 GPUs: 32 learner ranks, 8 engines over 4 GPUs each.
# Data: DAPO-Math-17k, from the hub or a file.
#   HOSTS=head,worker1 retool_32b.sh --data.prompt_dataset BytedTsinghua-SIA/DAPO-Math-17k --env.url URLS [any flag of `openrlhf-tir train`]
# URLS, with the same TIR_ENV_TOKEN in both environments: what `start_env_servers.sh -h ADDRESS -n 4 -- --workers 16 --code-timeout 5` prints.
# Inside a SLURM allocation HOSTS is not needed. train_scripts/setup_env.sh --gpu must have run on every node (launch_multinode.sh).
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/launch_multinode.sh" ${HOSTS:+--hosts "$HOSTS"} -- --recipe retool_32b "$@"
