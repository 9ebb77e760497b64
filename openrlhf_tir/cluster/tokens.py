"""Bearer tokens: one for the environment servers, another for the rollout endpoints.

Hosts that run the model's code hold the environments' token. Whoever takes it from there must not be able to talk to
the engines, which can be paused, sampled from and given rewards. So the endpoints never accept that token:

    $TIR_ENV_TOKEN     $TIR_ROLLOUT_TOKEN    rollout endpoints
    unset              unset                 on loopback, without a token
    set                unset                 on the node's address, with a token that is made for the run:
                                             RUN_DIR/endpoints/token, mode 0600
    any                set                   on the node's address, with that token

A restarted run finds its token in the file, so that agents can continue.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..config import Config
from ..config.secrets import ENV_TOKEN, ROLLOUT_TOKEN
from ..errors import ConfigError

FILE = "endpoints/token"


class Tokens(NamedTuple):
    """The tokens of a run.

    Attributes:
        env: For the environment servers; None if there is none.
        rollout: For the rollout endpoints; None if they are on loopback without a token.
    """

    env: str | None
    rollout: str | None


def check_tokens(cfg: Config, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return what a person should know about the tokens.

    Raises:
        ConfigError: Both tokens are the same.
    """
    env = environ.get(ENV_TOKEN)
    rollout = environ.get(ROLLOUT_TOKEN)
    if rollout and rollout == env:
        raise ConfigError(
            f"${ROLLOUT_TOKEN} and ${ENV_TOKEN} hold the same"
            " token, and hosts that run the model's code have it. Give the rollout endpoints a different token, or"
            f" leave ${ROLLOUT_TOKEN} unset to have one made."
        )
    if env and not rollout:
        return [
            f"the rollout endpoints get their own token, in {cfg.run_dir / FILE}; agents send that one, not"
            f" ${ENV_TOKEN}"
        ]
    return []


def tokens(cfg: Config, environ: Mapping[str, str] = os.environ) -> Tokens:
    """Return the tokens of this run; make the file if the table above says so.

    Raises:
        ConfigError: Both tokens are the same.
    """
    check_tokens(cfg, environ)
    env = environ.get(ENV_TOKEN) or None
    rollout = environ.get(ROLLOUT_TOKEN) or None
    return Tokens(env, rollout or (_own(cfg.run_dir / FILE) if env else None))


def _own(path: Path) -> str:
    """Return the token in the file. Make one if there is no file, or an empty one: a full disk takes no text."""
    with suppress(FileNotFoundError):
        if token := path.read_text().strip():
            return token
    path.parent.mkdir(parents=True, exist_ok=True)
    token = secrets.token_urlsafe(32)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(token + "\n")
    return token
