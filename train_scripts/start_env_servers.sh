#!/usr/bin/env bash
# Start N environment servers, print their URLs (for --env.url) once all are healthy, and keep them until Ctrl-C or SIGTERM.
#   start_env_servers.sh [--ray] [-n N] [-e ENV] [-h HOST] [-p PORT] [-- flags of the server]
#   TIR_ENV_TOKEN=... start_env_servers.sh -n 4 -h 10.0.0.5 -- --workers 8 --code-timeout 20   (env.code_timeout_s of the run: another one is refused)
#   start_env_servers.sh -e own -- shop.py:price --name shop                                   (your own class or functions: what would be env.file)
# They listen on PORT (8100) and the ports after it; -p 0: on free ones. --workers is how many actions each runs at once, about its share of the cores.
# 0.0.0.0 listens on all networks, and the URLs name this machine's first address.
# A HOST other than loopback needs a bearer token in $TIR_ENV_TOKEN, the same for the run.
# With --ray they are copies under Ray Serve, on the nodes of $RAY_ADDRESS or of a cluster of their own, behind one URL (port PORT, 8000); Serve replaces
# those that die.
set -euo pipefail
if [[ ${1:-} == --help ]]; then sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit 0; fi
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) # the caller's directory stays: flags name files in it
export PYTHONPATH=$repo${PYTHONPATH:+:$PYTHONPATH} PYTHONSAFEPATH=1 # no module of the caller's directory stands in for ours
unset PYTHONDONTWRITEBYTECODE # set in many container images; every server and worker would compile what it imports anew

count=1 env=python_tir host=127.0.0.1 port="" ray=""
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
[[ $count =~ ^[1-9][0-9]{0,3}$ ]] || { echo "start_env_servers.sh: -n $count is no number of servers. Use 1 to 9999." >&2; exit 2; }

venv=${TIR_VENV:-.venv}
[[ $venv == /* ]] || venv=$repo/$venv
python=$venv/bin/python
if [[ -n $ray ]]; then exec "$python" -m openrlhf_tir.cluster.env_serve "$env" -n "$count" --host "$host" --port "${port:-8000}" -- "$@"; fi
port=${port:-8100}
if [[ ! $port =~ ^(0|[1-9][0-9]{0,4})$ ]] || ((port + count > 65536)); then
    echo "start_env_servers.sh: -p $port leaves no port for $count server(s). Use 1 to $((65536 - count)), or 0 for free ones." >&2
    exit 2
fi
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
named=$host # in URLs
case $host in 0.0.0.0 | ::) named=$(hostname -I | grep -oE '[0-9]+(\.[0-9]+){3}' | head -n 1) || named=$host ;; esac
[[ $named != *:* ]] || named="[$named]"
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
    setsid "$python" -m "$module" --host "$host" --port $((port ? port + i : 0)) --port-file "$ports/$i" --die-with-parent $$ "$@" >&2 &
    pids+=($!)
done

urls=()
deadline=$((SECONDS + 300)) # a start takes a second, and minutes on a starved machine
for ((i = 0; i < count; i++)); do
    until [[ -s $ports/$i ]]; do # the server writes this file when it answers
        kill -0 "${pids[i]}" 2>/dev/null || { echo "Server $i of env '$env' ended while starting; its message is above. If the port is in use: -p PORT, or -p 0 for any." >&2; exit 1; }
        ((SECONDS < deadline)) || { echo "Server $i of env '$env' did not answer within 300 s." >&2; exit 1; }
        sleep 0.2
    done
    urls+=("http://$named:$(<"$ports/$i")")
done
(IFS=, && echo "${urls[*]}" && echo "$count server(s) of env '$env' are up. Train with --env.url ${urls[*]}" >&2)
wait -n "${pids[@]}" || true
echo "A server of env '$env' ended; stopping the others." >&2
exit 1
