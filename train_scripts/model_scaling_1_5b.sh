#!/usr/bin/env bash
# Accuracy against model size: 1.5B. The same run on 7B and 32B: model_scaling_7b.sh, model_scaling_32b.sh.
# One node of 8 GPUs: 4 learner ranks, 4 engines.
# Data: as for zerotir_7b.
#   model_scaling_1_5b.sh --data.prompt_dataset orz_math_57k_collected.json [any flag of `openrlhf-tir train`]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/train.sh" --recipe model_scaling_1_5b "$@"
