#!/usr/bin/env bash
# Submit a training run to a Ray cluster: submit_ray_job.sh --run-dir /shared/runs/a --recipe zerotir_7b --env.url URLS ...   [any flag of `openrlhf-tir train`]
# On a cluster of several nodes URLS are environment servers that all of them reach (what start_env_servers.sh prints), with TIR_ENV_TOKEN set.
# A training run that dies, as with a node, goes on by itself only with --train.max_restarts 3 among its flags.
# Environment: RAY_ADDRESS (dashboard, default http://127.0.0.1:8265), TIR_JOB_FLAGS (more flags for `ray job submit`, e.g. --no-wait),
#   TIR_COMMAND (train, or another command). What NCCL, gloo, vLLM, torch, Triton, CUDA and DeepSpeed read from the environment goes to every
#   process of the run, on all nodes: openrlhf_tir/config/forwarded.py has the list.
# The repository travels as the job's working directory, so the nodes need the requirements, not the code: in an environment at the path of
# this one (TIR_VENV, or .venv here), or else in that of the `python` in Ray's PATH there. A recipe of your own, and the
# files of your own that it or a flag names (path/file.py:function), are copied along.
# `ray job stop` gives the run the time that it needs to save a checkpoint (train.stop_grace_s).
set -euo pipefail
if [[ ${1:-} == --help ]]; then sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit 0; fi
caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${TIR_VENV:-.venv}
[[ -x $venv/bin/ray ]] || { echo "There is no $venv/bin/ray. Run train_scripts/setup_env.sh first." >&2; exit 2; }
if [[ ${TIR_COMMAND:-train} == train && " $* " != *" --run-dir"* ]]; then
    echo "Give --run-dir with an absolute path that the nodes share: the job's own directory is temporary." >&2
    exit 2
fi

umask 077
runtime_env=$(mktemp --suffix=.yaml) # a file: secrets do not belong on a command line
own=$(mktemp -d .job-XXXXXX) # inside of what is sent
trap 'rm -rf "$runtime_env" "$own"' EXIT
packed=$("$venv/bin/python" -c 'import sys; from pathlib import Path; from openrlhf_tir.config.packed_command import pack
print("\0".join(pack(sys.argv[3:], Path(sys.argv[1]).resolve(), Path(sys.argv[2]))), end="\0")' "$own" "$caller" "$@" | base64 -w 0)
mapfile -d '' -t args < <(base64 -d <<< "$packed")
"$venv/bin/python" - "$venv" > "$runtime_env" <<'PY'
import json, os, sys
from openrlhf_tir.config.forwarded import forwarded
secrets = ("WANDB_API_KEY", "TIR_ENV_TOKEN", "TIR_ROLLOUT_TOKEN")
# By itself Ray kills a job three seconds after `ray job stop`. A run that stops ends itself, after its grace and a minute.
stop = {"RAY_JOB_STOP_WAIT_TIME_S": os.environ.get("RAY_JOB_STOP_WAIT_TIME_S", "3600")}
venv = os.path.abspath(sys.argv[1])
inside = os.path.relpath(venv)
print(json.dumps({
    # the `python` of a node whose Ray was started by its path, not from an activated environment, may be another
    "env_vars": {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "", "PATH": f"{venv}/bin:${{PATH}}", **stop, **forwarded(), **{k: os.environ[k] for k in secrets if k in os.environ}},
    "excludes": [".git", "/.venv*", *([] if inside.startswith("..") else [f"/{inside}"]), "/runs", "/build", "/dist", "*.safetensors", "*.pt", "__pycache__"],
}))
PY
command=(python -m openrlhf_tir.cli "${TIR_COMMAND:-train}" "${args[@]}")
# Ray joins the words for a shell there, and quotes none for a $, a brace or a line's end in them.
if [[ "${command[*]}" == *[!A-Za-z0-9_./:=,@%+\ -]* ]]; then
    printf '%q ' exec "${command[@]}" > "$own/command.sh"
    command=(bash "$own/command.sh")
fi
read -r -a job_flags <<< "${TIR_JOB_FLAGS:-}"
"$venv/bin/ray" job submit --address "${RAY_ADDRESS:-http://127.0.0.1:8265}" --working-dir . --runtime-env "$runtime_env" "${job_flags[@]}" \
    -- "${command[@]}"
