"""python -m openrlhf_tir.cluster.env_serve ENV [-n N] [-- flags of the server]: N copies of an environment's server
under Ray Serve, behind one URL.

Joins the cluster of $RAY_ADDRESS, or starts one of its own on this machine. Prints the URL (for --env.url) once every
copy answers, and keeps them until Ctrl-C or SIGTERM. A --host other than loopback needs the bearer token in
$TIR_ENV_TOKEN, as every server does."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec

import ray

from ...errors import ClusterFull, TirError, unknown
from ..env_process import SERVERS
from ..own_sessions import own_sessions

START_S = 300.0
"""Seconds in which one copy has to start: an index that is built, a package that is imported on a busy node."""
CONSTRUCTOR_TRIES = 3
TOKEN_ENV = "TIR_ENV_TOKEN"
OBJECT_STORE = 256 << 20
"""Bytes of the object store of a Ray that is started here: no object is ever put there."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    name = "python -m openrlhf_tir.cluster.env_serve"
    usage = f"{name} [-h] [-n N] [--host HOST] [--port PORT] [--cpus N] [--drain S] ENV [-- FLAGS...]"
    p = argparse.ArgumentParser(prog=name, usage=usage, description=__doc__, formatter_class=raw)
    p.add_argument("env", help=f"one of {', '.join(SERVERS)}, or a server's module")
    p.add_argument(
        "-n", "--replicas", type=int, default=1, metavar="N", help="copies of the server (default: %(default)s)"
    )
    p.add_argument(
        "--host",
        default="127.0.0.1",
        help="address of the URL; other than loopback: copies are on their nodes' addresses (default: %(default)s)",
    )
    p.add_argument("--port", type=int, default=8000, help="port of the URL (default: %(default)s)")
    p.add_argument(
        "--cpus", type=float, default=1.0, metavar="N", help="CPUs that Ray keeps for a copy (default: %(default)s)"
    )
    p.add_argument(
        "--drain",
        type=float,
        default=30.0,
        metavar="S",
        help="on the end let running steps finish for S seconds (default: %(default)s)",
    )
    return p


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """What comes after `--` are the server's own flags, in `flags`."""
    ours, flags = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, ())
    args = parser().parse_args(ours)
    args.flags = list(flags)
    return args


def main() -> None:
    args = parsed(sys.argv[1:])
    if args.replicas < 1 or not 0 < args.port < 1 << 16:
        sys.exit(
            "Nothing would serve: -n must be at least 1, and --port one of 1 to"
            " 65535 (Serve takes no free one by itself)."
        )
    if args.host not in LOOPBACK and not os.environ.get(TOKEN_ENV):
        sys.exit(
            f"--host {args.host} is reachable from other machines and ${TOKEN_ENV} is not set:"
            " anyone could run code here."
        )
    _heed_signals()
    try:
        run(args, module_of(args.env))
    except KeyboardInterrupt:
        pass
    except TirError as e:
        sys.exit(str(e))


def module_of(env: str) -> str:
    """Raises ConfigError for a server that is not there."""
    module = SERVERS.get(env, env)
    if "." not in module or find_spec(module) is None:
        raise unknown("env", env, SERVERS, "Or give the module of a server.")
    return module


def run(args: argparse.Namespace, module: str) -> None:
    """Until a signal. Everything that was deployed is gone then."""
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
    _heed_signals()  # ray.init has taken SIGTERM for itself
    name = args.env.rpartition(".")[2]
    secrets = {key: os.environ[key] for key in (TOKEN_ENV,) if key in os.environ}
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": args.host, "port": args.port})
        deployment = serve.deployment(EnvReplica).options(
            name=f"env-{name}",
            num_replicas=args.replicas,  # fixed: a copy that is scaled away would take its sessions along
            max_ongoing_requests=10_000,  # the server refuses by itself, with a reason
            graceful_shutdown_timeout_s=args.drain + 10,
            max_constructor_retry_count=CONSTRUCTOR_TRIES,
            ray_actor_options={"num_cpus": args.cpus, "runtime_env": {"env_vars": secrets}},
        )
        own = args.host if args.host in LOOPBACK else None
        signal.signal(signal.SIGALRM, _late)
        signal.alarm(round(START_S * CONSTRUCTOR_TRIES))  # Serve itself would wait for room in the cluster for ever
        serve.run(
            deployment.bind(module, [*args.flags, "--drain", str(args.drain)], own, START_S, args.drain),
            name=f"env-{name}",
            route_prefix=f"/{name}",
        )
        signal.alarm(0)
        print(f"http://{args.host}:{args.port}/{name}", flush=True)
        while True:
            signal.pause()
    except RuntimeError as e:  # Serve's, with its replicas' own words
        sys.exit(f"The copies did not come up: {e}")
    finally:
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, signal.SIG_IGN)
        with suppress(Exception):  # of a Serve that has not come up, or is gone
            serve.delete(f"env-{name}")
        ray.shutdown()


def needs_older_protobuf() -> bool:
    """Serve reads a deployment's settings with what protobuf 7 has no more (ray-project/ray, issue 64710). Asked by
    doing it, since later versions of Ray can: else its controller would fail, after a minute and with a traceback."""
    try:
        from ray.serve._private.config import DeploymentConfig

        DeploymentConfig.from_proto_bytes(DeploymentConfig().to_proto_bytes())
    except ImportError:  # a Ray that has it elsewhere, and is later than these
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
    with own_sessions():  # a signal to our process group must not end Ray while the copies drain
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE,
            logging_level="warning",
        )


def _heed_signals() -> None:
    """SIGINT too: whoever starts this in the background of a script has it ignored."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _late(number: int, frame: object) -> None:
    free = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "memory")}
    late = f"The copies did not come up within {START_S * CONSTRUCTOR_TRIES:g} s"
    raise ClusterFull(f"{late}; {free} of the cluster is free. Ask for fewer (-n) or less (--cpus).")


if __name__ == "__main__":
    main()
