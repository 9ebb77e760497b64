"""Change a run that is running by a file in its directory, which the `control` command writes.

    run_dir/control.toml           rollout_actors = 3
                                   [env_urls]
                                   python_tir = ["http://10.0.0.5:8100", "http://10.0.0.6:8100"]
    run_dir/control.applied.json   the controller's answer: {"rollout_actors", "env_urls", "error"}

The controller reads the file every POLL_S seconds (a shared file system sends no events) and applies it as a whole or
not at all: a URL whose server does not answer as that environment is refused. Environments that the file does not name
keep their servers. A resumed run applies the file that it finds; a new one removes it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...config import Config
from ...config.secrets import ENV_TOKEN
from ...config.toml_file import read_toml
from ...errors import ConfigError, Unavailable, unknown
from ...machine.files import replace_text
from ...rollout.environment_client.probe import probe_env
from ...waiting.background import background

if TYPE_CHECKING:
    from ..engine_pool import EnginePool

log = logging.getLogger(__name__)
FILE = "control.toml"
APPLIED = "control.applied.json"
POLL_S = 2.0
"""Seconds between two readings of the file."""


class Control(BaseModel):
    """What the file asks for. An unset field leaves things as they are.

    Attributes:
        rollout_actors: Number of engines.
        env_urls: Environment -> its servers.
    """

    model_config = ConfigDict(extra="forbid")
    rollout_actors: int | None = Field(None, ge=1, le=4096)
    env_urls: dict[str, Annotated[list[str], Field(min_length=1)]] | None = None


def read(path: Path) -> Control:
    """Return the content of a control file. Raises ConfigError."""
    try:
        return Control.model_validate(read_toml(path, "Control file"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}. Correct it, or use `openrlhf-tir control`."
        ) from None


def write(path: Path, control: Control) -> None:
    """Write a control file by an atomic rename, so that no reader sees half of it."""
    lines = [] if control.rollout_actors is None else [f"rollout_actors = {control.rollout_actors}"]
    if control.env_urls is not None:
        lines += ["[env_urls]", *(f"{json.dumps(env)} = {json.dumps(urls)}" for env, urls in control.env_urls.items())]
    replace_text(path, "\n".join(lines) + "\n")


async def apply(
    control: Control,
    pool: EnginePool,
    *,
    token: str | None,
    serves: Mapping[str, str],
    probe: Callable[..., Any] = probe_env,
) -> None:
    """Apply a control file to a run.

    Args:
        control: What the file asks for.
        pool: The engines of the run.
        token: Bearer token of the environment servers.
        serves: Environment of the run -> what its servers say that they are.
        probe: Asks a server what it is.

    Raises:
        ConfigError: The file asks for something that is not possible. Nothing was changed.
        Unavailable: A server does not answer. Nothing was changed.
    """
    for env, urls in (control.env_urls or {}).items():
        if env not in serves:
            raise unknown("env", env, serves, "Correct env_urls: a run keeps the environments that it started with.")
        for url in urls:
            _, schema = await asyncio.to_thread(probe, url, token=token)
            if schema.env != serves[env]:
                raise ConfigError(f"The server at {url} is env {schema.env!r}, not {serves[env]!r}. Correct env_urls.")
    if control.rollout_actors is not None:
        pool.resize(control.rollout_actors)
    if control.env_urls is not None:
        await pool.set_env_urls({**pool.env_urls, **control.env_urls})


@asynccontextmanager
async def followed(cfg: Config, pool: EnginePool) -> AsyncIterator[None]:
    """Apply the run's control file whenever it changes, for the time of the block.

    If the disk or file system fails meanwhile, it is tried again; it never ends the run.
    """
    if not cfg.train.resume:
        for name in (FILE, APPLIED):
            (cfg.run_dir / name).unlink(missing_ok=True)
    token = os.environ.get(ENV_TOKEN)
    serves = {name: e.serves for name, e in cfg.environments.items()}
    async with background("control file", lambda: _follow(cfg.run_dir, pool, token, serves)):
        yield


async def _follow(run_dir: Path, pool: EnginePool, token: str | None, serves: Mapping[str, str]) -> None:
    path = run_dir / FILE
    seen = None
    while True:
        stamp = _stamp(path)
        if stamp not in (None, seen):
            control = None
            error = None
            try:
                control = read(path)
                await apply(control, pool, token=token, serves=serves)
                log.warning("%s applied: %s", path, control.model_dump(exclude_none=True))
            except (ConfigError, Unavailable) as e:
                error = str(e)
                log.error("%s is not applied: %s", path, e)
            replace_text(
                run_dir / APPLIED, json.dumps((control or Control()).model_dump() | {"error": error, "stamp": stamp})
            )
            seen = stamp
        await asyncio.sleep(POLL_S)


def _stamp(path: Path) -> int | None:
    """Return a value that changes whenever the file does; None if there is none."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def applied(run_dir: Path) -> dict[str, Any] | None:
    """Return the controller's answer to the control file as it is now; None if the controller has not read it yet."""
    try:
        answer = json.loads((run_dir / APPLIED).read_text())
    except FileNotFoundError:
        return None
    return answer if answer["stamp"] == _stamp(run_dir / FILE) else None
