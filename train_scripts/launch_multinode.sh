#!/usr/bin/env bash
# Start Ray on a head and its workers, wait until all have joined, train, tear everything down.
#   launch_multinode.sh --hosts head,worker1,worker2 -- --recipe zerotir_32b --env.url URLS ...    (ssh; the repository at the same path everywhere)
#   srun/sbatch: inside an allocation, launch_multinode.sh -- --recipe ...                        (SLURM; one task per node is started here)
#   --interface eth1: the network that the nodes reach each other by, for Ray, NCCL and gloo (default: the first address of each node).
# A run over several nodes needs environment servers that all of them reach: --env.url, what start_env_servers.sh prints, and TIR_ENV_TOKEN.
# A training run that dies, as with a node, goes on by itself only with --train.max_restarts 3 among its flags.
# Environment: TIR_COMMAND (train, or sft), RAY_PORT (6379), RAY_HEAD_FLAGS (more of `ray start --head`: --dashboard-host=0.0.0.0), TIR_VENV (.venv).
# What NCCL, gloo, vLLM, torch, Triton, CUDA and DeepSpeed read from the environment goes to every process of the run, on all nodes:
# openrlhf_tir/config/forwarded.py has the list.
set -euo pipefail
if [[ ${1:-} == --help ]]; then sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit 0; fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repo=$PWD

port=${RAY_PORT:-6379}
venv=${TIR_VENV:-$repo/.venv}
hosts=()
interface=
while (($#)); do
    case $1 in
        --hosts) IFS=, read -r -a hosts <<< "${2:?--hosts needs a list}"; shift 2 ;;
        --interface) interface=${2:?--interface needs a name, e.g. eth1}; shift 2 ;;
        --) shift; break ;;
        *) echo "launch_multinode.sh: unknown option '$1'. Known: --hosts A,B,... --interface NAME -- TRAIN FLAGS" >&2; exit 2 ;;
    esac
done
if ((${#hosts[@]} == 0)) && [[ -n ${SLURM_JOB_NODELIST:-} ]]; then
    mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
fi
if ((${#hosts[@]} == 0)) && [[ " $* " == *" --help "* ]]; then exec "$venv/bin/python" -m openrlhf_tir.cli "${TIR_COMMAND:-train}" "$@"; fi
((${#hosts[@]})) || { echo "No hosts: give --hosts head,worker1,... or run inside a SLURM allocation." >&2; exit 2; }
if [[ ! $port =~ ^[1-9][0-9]{0,4}$ ]] || ((port > 65535)); then
    echo "launch_multinode.sh: RAY_PORT=$port is no port. Use 1024 to 65535." >&2
    exit 2
fi
head=${hosts[0]}
[[ -x $venv/bin/ray ]] || { echo "There is no $venv/bin/ray. Run train_scripts/setup_env.sh on every node first." >&2; exit 2; }

# ${apart[@]+...}: bash before 4.4 calls an empty array unbound under set -u.
apart=() # set to `setsid` by a caller whose command must not hear a signal to our process group

on() { # host, command
    if [[ -n ${SLURM_JOB_ID:-} ]]; then
        # A step does not inherit sbatch's --cpus-per-task (Slurm 22.05 and later): without it Ray and all it starts would share one core.
        ${apart[@]+"${apart[@]}"} srun --overlap --nodes=1 --ntasks=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}" --cpu-bind=none --nodelist="$1" bash -c "$2"
    elif [[ $1 == localhost || $1 == "$(hostname)" ]]; then
        ${apart[@]+"${apart[@]}"} bash -c "$2"
    else
        ${apart[@]+"${apart[@]}"} ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new "$1" "$2"
    fi
}

# Each node notes the process that holds its Ray daemons; ending that one ends them, and nobody else's Ray. /tmp is shared with other users and with
# earlier launchers, so the file has a name that only this launcher knows.
pid_file="/tmp/openrlhf_tir_ray_${port}_$(od -An -N8 -tx8 /dev/urandom | tr -d ' ').pid"
REJOIN_S=10
HEAD_UP_S=120 # a head that ends sooner never was: Ray gives up after some 60

kept=() # what holds Ray up, and what waits for it
# shellcheck disable=SC2329 # called by the trap
tear_down() {
    trap - EXIT
    echo "stopping Ray on ${hosts[*]}" >&2
    ((${#kept[@]} == 0)) || kill "${kept[@]}" 2>/dev/null || true
    for host in "${hosts[@]}"; do
        on "$host" "kill \$(cat $pid_file); rm -f $pid_file" >/dev/null 2>&1 &
    done
    wait
}
[[ -z $interface ]] || export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-$interface} GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$interface}
forwarded=$("$venv/bin/python" -m openrlhf_tir.config.forwarded | tr '\n' ' ') # ssh passes no environment on

# What prints a node's own address, to be run there.
own_address="hostname -I"
[[ -z $interface ]] || own_address="'$venv/bin/python' -c \"import psutil, socket
print(*[a.address for a in psutil.net_if_addrs().get('$interface', ()) if a.family == socket.AF_INET])\""

address_of() { # host
    local found
    found=$(on "$1" "$own_address" | grep -oE -m 1 '[0-9]+(\.[0-9]+){3}' | head -n 1) || true # IPv6 addresses may come first
    [[ -n $found ]] || { echo "$1 has no IPv4 address${interface:+ on $interface}. Name the network of the nodes with --interface." >&2; return 2; }
    echo "$found"
}

# Ray needs far more open files than the usual 1024, and `ray start` does not raise the limit.
# shellcheck disable=SC2016 # the words are for the other node's shell
many_files='[ "$(ulimit -Sn)" = unlimited ] || [ "$(ulimit -Sn)" -ge 65536 ] || ulimit -Sn 65536 2> /dev/null || ulimit -Sn "$(ulimit -Hn)";'

ray_on() { # host, flags of ray start, what to wait for first; ends with Ray
    # PYTHONDONTWRITEBYTECODE is set in many container images; every process would then compile torch and vLLM anew, 10 s each.
    # Launchers signal our whole process group. Ray has to live until the run has saved its checkpoint; tear_down ends it.
    local apart=(setsid)
    # Ray's sockets are below TMPDIR, and a job's own may be too long for them.
    on "$1" "cd '$repo' && $forwarded $3 [ \${#TMPDIR} -le 39 ] || export RAY_TMPDIR=\${RAY_TMPDIR:-/tmp}; $many_files export OMP_NUM_THREADS=\${OMP_NUM_THREADS:-1}; unset PYTHONDONTWRITEBYTECODE; echo \$\$ > $pid_file && exec '$venv/bin/ray' start $2 --disable-usage-stats --block"
}

# A node that was away, or whose Ray was killed, joins again for as long as the run waits for it: Ray itself gives up on a node that missed its heartbeats.
keep_ray_on() { # likewise
    while true; do
        ray_on "$@" || true
        echo "Ray on $1 has ended; it is started again in $REJOIN_S s" >&2
        sleep "$REJOIN_S"
    done
}

address=$(address_of "$head")
if on "$head" "(exec 3<>/dev/tcp/$address/$port) 2>/dev/null"; then
    echo "Port $port of $address ($head) is in use, maybe by another Ray. Set RAY_PORT to a free one, or end what listens there." >&2
    exit 2
fi

# Only from here on: before, a Ray on these nodes is somebody else's.
trap tear_down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A head too busy to come up in the time that Ray gives it is started again. One that was up is not: what the cluster knew ended with it.
keep_head_until_it_is_up() {
    local try begun
    for try in 1 2 3; do
        ((try == 1)) || { echo "Ray on $head did not come up; it is started again in $REJOIN_S s" >&2; sleep "$REJOIN_S"; }
        begun=$SECONDS
        ray_on "$head" "--head --node-ip-address=$address --port=$port ${RAY_HEAD_FLAGS:-}" "" || true
        ((SECONDS - begun < HEAD_UP_S)) || return 0
    done
    echo "Ray on $head did not come up, three times. What it said is above." >&2
}

keep_head_until_it_is_up &
kept+=($!)
for host in "${hosts[@]:1}"; do
    own=
    if [[ -n $interface ]]; then own=$(address_of "$host"); fi
    keep_ray_on "$host" "--address=$address:$port ${own:+--node-ip-address=$own}" "until (exec 3<>/dev/tcp/$address/$port) 2>/dev/null; do sleep 1; done;" &
    kept+=($!)
done

# In the background, as bash runs no trap before a command in the foreground is over.
"$venv/bin/python" - "$address:$port" "${#hosts[@]}" <<'PY' &
import socket, sys, time
import ray
address, wanted, deadline = sys.argv[1], int(sys.argv[2]), time.monotonic() + 300
joined = 0
while joined < wanted:
    if time.monotonic() > deadline:
        sys.exit(f"{joined} of {wanted} nodes joined {address} within 300 s. Look at `ray status` and /tmp/ray on the others.")
    try:
        if not ray.is_initialized():
            socket.create_connection(address.rsplit(":", 1), 5).close()  # where nobody listens Ray would try for half a minute
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        joined = sum(node["Alive"] for node in ray.nodes())
    except (OSError, ValueError):  # ConnectionError is one
        pass
    time.sleep(1)
print(f"{joined} nodes joined {address}")
PY
kept+=($!)
wait $!

# Likewise: a SIGTERM from the scheduler is the run's at once, and the run ends with this script, however that went.
RAY_ADDRESS=$address:$port "$venv/bin/python" -m openrlhf_tir.cli "${TIR_COMMAND:-train}" "$@" --die-with-parent $$ &
run=$!
trap 'kill -TERM "$run" 2>/dev/null' INT TERM
until wait "$run" || ! kill -0 "$run" 2>/dev/null; do :; done
code=0
wait "$run" || code=$?
exit "$code"
