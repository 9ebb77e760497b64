"""python -m openrlhf_tir.cluster.env_serve ENV [-n N] [-- flags of the server]: run N copies of an environment's server
under Ray Serve, behind one URL.

It joins the cluster of $RAY_ADDRESS, or starts a Ray on this machine. It prints the URL (for --env.url) when every copy
answers, and keeps the copies until Ctrl-C or SIGTERM. A --host other than loopback requires the bearer token in
$TIR_ENV_TOKEN, as it does for every server.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec

import ray

from ...config.secrets import ENV_TOKEN
from ...config.servers import SERVERS
from ...errors import ClusterFull, TirError, unknown
from ..env_process import LOOPBACK
from ..own_sessions import own_sessions
from ..ray_session import temp_dir

START_S = 300.0
"""Seconds in which one copy must start. It may build an index, or import a package on a busy node."""
CONSTRUCTOR_TRIES = 3
"""How often Serve starts a copy that fails."""
OBJECT_STORE = 256 << 20
"""Bytes of the object store of a Ray that is started here. No object is ever put there."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags before `--`."""
    formatter = argparse.RawDescriptionHelpFormatter
    name = "python -m openrlhf_tir.cluster.env_serve"
    usage = f"{name} [-h] [-n N] [--host HOST] [--port PORT] [--cpus N] [--drain S] ENV [-- FLAGS...]"
    arguments = argparse.ArgumentParser(prog=name, usage=usage, description=__doc__, formatter_class=formatter)
    arguments.add_argument("env", help=f"one of {', '.join(SERVERS)}, or a server's module")
    arguments.add_argument(
        "-n", "--replicas", type=int, default=1, metavar="N", help="copies of the server (default: %(default)s)"
    )
    arguments.add_argument(
        "--host",
        default="127.0.0.1",
        help="address of the URL; if not loopback, copies listen on their nodes' addresses (default: %(default)s)",
    )
    arguments.add_argument("--port", type=int, default=8000, help="port of the URL (default: %(default)s)")
    arguments.add_argument(
        "--cpus", type=float, default=1.0, metavar="N", help="CPUs that Ray keeps for a copy (default: %(default)s)"
    )
    arguments.add_argument(
        "--drain",
        type=float,
        default=30.0,
        metavar="S",
        help="at the end, let running steps finish for S seconds (default: %(default)s)",
    )
    return arguments


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. What follows `--` are the server's own flags, returned in `flags`."""
    end = argv.index("--") if "--" in argv else len(argv)
    args = parser().parse_args(argv[:end])
    args.flags = list(argv[end + 1 :])
    return args


def main() -> None:
    """Run the command."""
    args = parsed(sys.argv[1:])
    if args.replicas < 1 or not 0 < args.port < 1 << 16:
        sys.exit(
            f"Nothing would serve with -n {args.replicas} and --port {args.port}: give -n 1 or more, and a port from 1"
            " to 65535 (Serve cannot choose a free one)."
        )
    if args.host not in LOOPBACK and not os.environ.get(ENV_TOKEN):
        sys.exit(
            f"--host {args.host} is reachable from other machines and ${ENV_TOKEN} is not set:"
            " anyone could run code here."
        )
    _handle_signals()
    try:
        run(args, module_of(args.env))
    except KeyboardInterrupt:
        pass
    except TirError as error:
        sys.exit(str(error))


def module_of(env: str) -> str:
    """Return the module of a server. Raises ConfigError if it does not exist."""
    module = SERVERS[env].module if env in SERVERS else env
    if "." not in module or find_spec(module) is None:
        raise unknown("env", env, SERVERS, "Or give the module of a server.")
    return module


def run(args: argparse.Namespace, module: str) -> None:
    """Serve until a signal comes, then remove everything that was deployed."""
    try:
        from ray import serve
    except ImportError as e:
        sys.exit(
            f"Ray Serve cannot be imported ({e}). Install it: pip install 'ray[serve]=={ray.__version__}' 'protobuf<7'."
        )
    if needs_older_protobuf():
        sys.exit(
            f"Ray Serve {ray.__version__} does not work with protobuf {version('protobuf')}."
            " Install an older one: pip install 'protobuf<7'."
        )
    from .replica import EnvReplica

    _join(args)
    _handle_signals()  # again, because ray.init installs its own handler of SIGTERM
    name = args.env.rpartition(".")[2]
    secrets = {key: os.environ[key] for key in (ENV_TOKEN,) if key in os.environ}
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": args.host, "port": args.port})
        deployment = serve.deployment(EnvReplica).options(
            name=f"env-{name}",
            num_replicas=args.replicas,  # fixed, because scaling a copy away would end its sessions
            max_ongoing_requests=10_000,  # The server itself refuses requests, with a reason.
            graceful_shutdown_timeout_s=args.drain + 10,
            max_constructor_retry_count=CONSTRUCTOR_TRIES,
            ray_actor_options={"num_cpus": args.cpus, "runtime_env": {"env_vars": secrets}},
        )
        own = args.host if args.host in LOOPBACK else None
        signal.signal(signal.SIGALRM, _report_late)
        signal.alarm(round(START_S * CONSTRUCTOR_TRIES))  # Serve itself would wait forever for room in the cluster.
        serve.run(
            deployment.bind(module, [*args.flags, "--drain", str(args.drain)], own, START_S, args.drain),
            name=f"env-{name}",
            route_prefix=f"/{name}",
        )
        signal.alarm(0)
        print(f"http://{args.host}:{args.port}/{name}", flush=True)
        while True:
            time.sleep(1.0)  # not signal.pause: a signal that comes just before that call does not end it
    except RuntimeError as error:  # Serve's, with its replicas' own words
        sys.exit(f"The copies did not come up: {error}")
    finally:
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, signal.SIG_IGN)
        with suppress(Exception):  # Serve may not have come up, or be gone.
            serve.delete(f"env-{name}")
        ray.shutdown()


def needs_older_protobuf() -> bool:
    """Return True if this Ray Serve does not work with the installed protobuf.

    Serve reads a deployment's settings with a function that protobuf 7 lacks (ray-project/ray, issue 64710), and its
    controller would fail after a minute with a traceback. The function is tried, because later versions of Ray work.
    """
    try:
        from ray.serve._private.config import DeploymentConfig

        DeploymentConfig.from_proto_bytes(DeploymentConfig().to_proto_bytes())
    except ImportError:  # a later Ray, which has it elsewhere
        return False
    except AttributeError:
        return True
    return False


def _join(args: argparse.Namespace) -> None:
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=True, logging_level="warning")
        alive = [node for node in ray.nodes() if node["Alive"]]
        if len(alive) > 1 and args.host in LOOPBACK:
            ray.shutdown()
            sys.exit(
                f"--host {args.host}: the cluster has {len(alive)} nodes, and loopback is another place on each."
                " Give the head's own address."
            )
        return
    # CPUs enough for the copies and Serve's own two actors: on a small machine they share them.
    cpus = max(os.cpu_count() or 1, int(args.replicas * args.cpus) + 2)
    with own_sessions():  # so that a signal to our process group does not end Ray while the copies drain
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE,
            logging_level="warning",
            _temp_dir=temp_dir(),
        )


def _handle_signals() -> None:
    """Interrupt the main thread on SIGTERM and SIGINT. A script that starts this in the background has SIGINT
    ignored."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _report_late(number: int, frame: object) -> None:
    free = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "memory")}
    late = f"The copies did not come up within {START_S * CONSTRUCTOR_TRIES:g} s"
    raise ClusterFull(f"{late}; {free} of the cluster is free. Ask for fewer (-n) or less (--cpus).")


if __name__ == "__main__":
    main()
