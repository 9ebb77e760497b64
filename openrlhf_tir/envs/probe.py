"""Env probe: base URL -> what an environment server says of itself. Two plain GETs, so it needs no event loop and no
session.

A server that answers wrongly is the user's mistake (ConfigError). One that does not answer, or says 429 or 5xx, may do
so in a minute (Unavailable): a person is told at once, a restart by the launcher waits (`backoff.until_available`)."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from ..errors import ConfigError, Unavailable
from ..protocol import EnvSchema, Health


def check_url(url: str) -> None:
    """Raises ConfigError for text that cannot be the URL of a server."""
    if not url.startswith(("http://", "https://")):
        said = "is none of http" if "://" in url else "has no scheme"
        raise ConfigError(f"Environment URL {url!r} {said}. Write http://host:port.")
    try:
        urlsplit(url).port  # noqa: B018
        url.encode()
    except ValueError as e:
        raise ConfigError(f"Environment URL {url!r} is no URL: {e}. Write http://host:port.") from None


def probe_env(url: str, *, token: str | None = None, timeout_s: float = 5.0) -> tuple[Health, EnvSchema]:
    """GET /health and /schema. Raises Unavailable when the server does not answer, ConfigError when it wants a token or
    speaks another protocol."""
    base = url.rstrip("/")
    check_url(base)
    health, schema = _get(f"{base}/health", token, timeout_s), _get(f"{base}/schema", token, timeout_s)
    try:
        return Health.model_validate(health), EnvSchema.model_validate(schema)
    except ValidationError as e:
        field = ".".join(map(str, e.errors()[0]["loc"]))
        raise ConfigError(
            f"{base} answers, but not as an environment server: {field}: {e.errors()[0]['msg']}."
            " Point env.url at a server of env_servers."
        ) from None


def _get(url: str, token: str | None, timeout_s: float) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    # like the client: environment servers are never behind a proxy
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as e:
        sent = "The token that was sent is not its" if token else "No token was sent"
        remedy = (
            f"{sent}: put its token into the environment variable that env.token_env names (TIR_ENV_TOKEN, if unset)."
            if e.code in (401, 403)
            else "Point env.url at a server of env_servers."
        )
        kind = Unavailable if e.code == 429 or e.code >= 500 else ConfigError
        raise kind(f"{url} answered {e.code} {e.reason}. {remedy}") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as e:
        raise Unavailable(
            f"{url} does not answer: {getattr(e, 'reason', e)} (waited at most {timeout_s:g} s). Start the server, or"
            " unset env.url to have one started."
        ) from None
    except ValueError:
        raise ConfigError(f"{url} answers, but not with JSON. Point env.url at a server of env_servers.") from None
