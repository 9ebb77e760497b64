"""Flags of a server whose sessions are containers."""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from env_servers.flags import seconds, shell_words, whole

from .api import RuntimeApi, StartOptions
from .backend import CHECKS, Remote
from .container import Containers
from .docker import Docker, DockerOptions
from .http import RuntimeHttp
from .image_layout import ImageLayout

KEY_ENV = "SANDBOX_API_KEY"
"""Environment variable of the API's key, named as OpenHands names it."""
COMMAND = (
    "/openhands/micromamba/bin/micromamba run -n openhands poetry run python -u -m"
    " openhands.runtime.action_execution_server 60000 --working-dir /workspace --username root --user-id 0"
)
"""OpenHands' server of actions."""


def add_runtime_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add = parser.add_argument_group("rows in containers").add_argument
    add(
        "--runtime-api",
        type=_url,
        metavar="URL",
        help=(
            f"runtime API as OpenHands' remote runtime has it; its key is in ${KEY_ENV}."
            " Bundled repositories are then not served"
        ),
    )
    add(
        "--docker",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="use containers of this machine's Docker instead",
    )
    add(
        "--docker-flags",
        type=shell_words,
        default=[],
        metavar="FLAGS",
        help="flags of `docker run`, in one text: '--memory=8g --cpus=2 --pids-limit=512'",
    )
    add(
        "--image",
        type=_image,
        metavar="NAME",
        help="image of a row that names none: {instance_id} as the row has it, {instance_s} and {instance_1776} in"
        " lower case with __ written _s_ or _1776_",
    )
    add(
        "--repo-root",
        type=_absolute,
        default=ImageLayout().root,
        metavar="PATH",
        help="directory of the repository in an image (default: %(default)s)",
    )
    add(
        "--repo-setup",
        default=ImageLayout().setup,
        metavar="BASH",
        help="bash that makes the repository's own Python `python` (default: %(default)s)",
    )
    add(
        "--runtime-command",
        type=shell_words,
        default=COMMAND,
        metavar="COMMAND",
        help="command of the action server in the images (default: OpenHands')",
    )
    add(
        "--runtime-timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds of one request, and of one script of git in a container (default: %(default)s)",
    )
    add(
        "--runtime-retries",
        type=whole(0),
        default=2,
        metavar="N",
        help="tries after the first one, of a request that may be repeated, a start, a judgement"
        " (default: %(default)s)",
    )
    add(
        "--row-checks",
        type=whole(0),
        default=CHECKS,
        metavar="N",
        help="rows that are tried without a patch at once, each once, in a container beside the sessions'; 0: none is,"
        " and a row whose tests contradict it gives rewards (default: %(default)s)",
    )
    add(
        "--resource-factor",
        type=whole(1),
        default=1,
        metavar="N",
        help="size of the container that is requested from the API (default: %(default)s)",
    )


def _url(text: str) -> str:
    """An argparse type for the URL of an API."""
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text} is no URL. Write http://HOST or https://HOST.")
    return text


def _image(text: str) -> str:
    """An argparse type for the name of an image, with the fields that `image_of` fills."""
    try:
        text.format(instance_id="", instance_s="", instance_1776="")
    except (LookupError, ValueError, AttributeError):
        raise argparse.ArgumentTypeError(
            f"{text} has another field than {{instance_id}}, {{instance_s}} and {{instance_1776}}."
        ) from None
    return text


def _absolute(text: str) -> str:
    """An argparse type for an absolute path."""
    if not text.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text} is not an absolute path. Write it from / on.")
    return text


def remote_of(args: argparse.Namespace, start_s: float) -> Remote:
    """Return the backend of the flags. Exits if they cannot work. `start_s` are the seconds in which a container must
    answer."""
    http = RuntimeHttp(request_s=args.runtime_timeout, retries=args.runtime_retries)
    layout = ImageLayout(args.repo_root, args.repo_setup.strip() or "true", args.runtime_timeout, args.test_timeout)
    containers: Containers
    if args.docker:
        if shutil.which("docker") is None or args.runtime_api:
            sys.exit("swe does not start: --docker needs the command docker, and goes without --runtime-api.")
        containers = Docker(http, DockerOptions(args.runtime_command, start_s, args.docker_flags))
    else:
        options = StartOptions(args.runtime_command, start_s, args.resource_factor)
        containers = RuntimeApi(http, args.runtime_api, os.environ.get(KEY_ENV, ""), options)
    return Remote(containers, layout, image=args.image, retries=args.runtime_retries, checks=args.row_checks)
