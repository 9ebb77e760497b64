#!/usr/bin/env bash
# Start N environment servers, print their URLs (for --env.url) once all are healthy, and keep them until Ctrl-C or SIGTERM.
#   start_env_servers.sh [--ray] [-n N] [-e ENV] [-h HOST] [-p PORT] [-- flags of the server, e.g. --workers 8]
# With --ray they are copies under Ray Serve, on the nodes of $RAY_ADDRESS or of a cluster of their own, behind one URL (port PORT, 8000); Serve replaces
# those that die. Without, PORT has no use: each has a free one.
# A HOST other than loopback needs the bearer token in $TIR_ENV_TOKEN.
set -euo pipefail
if [[ ${1:-} == --help ]]; then sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit 0; fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONDONTWRITEBYTECODE # set in many container images; every server and worker would compile what it imports anew

count=1 env=python_tir host=127.0.0.1 port=8000 ray=
if [[ ${1:-} == --ray ]]; then ray=1; shift; fi
while getopts "n:e:h:p:" option; do
    case $option in
        n) count=$OPTARG ;;
        e) env=$OPTARG ;;
        h) host=$OPTARG ;;
        p) port=$OPTARG ;;
        *) echo "usage: start_env_servers.sh [--ray] [-n N] [-e ENV] [-h HOST] [-p PORT] [-- server flags]" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[[ $count =~ ^[1-9][0-9]*$ ]] || { echo "start_env_servers.sh: -n $count is no number of servers. Use 1 or more." >&2; exit 2; }

python=${TIR_VENV:-.venv}/bin/python
if [[ -n $ray ]]; then exec "$python" -m openrlhf_tir.cluster.env_serve "$env" -n "$count" --host "$host" --port "$port" -- "$@"; fi
module=$("$python" - "$env" <<'PY'
import sys
from importlib.util import find_spec
from openrlhf_tir.config.servers import SERVERS

name = sys.argv[1]
module = SERVERS[name].module if name in SERVERS else f"env_servers.{name}"
if name not in SERVERS and not (name.isidentifier() and find_spec(module) and find_spec(f"{module}.__main__")):
    sys.exit(f"start_env_servers.sh: unknown env {name!r}. Known: {', '.join(sorted(SERVERS))}.")
print(module)
PY
) || exit 2
ports=$(mktemp -d)
pids=()
# shellcheck disable=SC2329 # called by the trap
stop() {
    trap - EXIT
    if ((${#pids[@]})); then
        kill "${pids[@]}" 2>/dev/null || true
        wait "${pids[@]}" 2>/dev/null || true
    fi
    rm -rf "$ports"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for ((i = 0; i < count; i++)); do
    # In a session of its own, a signal to our process group reaches this script only, which ends the servers once and
    # waits for them to drain.
    setsid "$python" -m "$module" --host "$host" --port-file "$ports/$i" --die-with-parent $$ "$@" >&2 &
    pids+=($!)
done

urls=()
deadline=$((SECONDS + 300)) # a start takes a second, and minutes on a starved machine
for ((i = 0; i < count; i++)); do
    until [[ -s $ports/$i ]]; do # the server writes this file when it answers
        kill -0 "${pids[i]}" 2>/dev/null || { echo "Server $i of env '$env' ended while starting; its message is above." >&2; exit 1; }
        ((SECONDS < deadline)) || { echo "Server $i of env '$env' did not answer within 300 s." >&2; exit 1; }
        sleep 0.2
    done
    urls+=("http://$host:$(<"$ports/$i")")
done
(IFS=, && echo "${urls[*]}")
wait -n "${pids[@]}" || true
echo "A server of env '$env' ended; stopping the others." >&2
exit 1
