"""Ask an environment server for its health and schema, with two plain GETs: no event loop, no session.

A server that answers wrongly is the user's mistake (ConfigError). A server that does not answer, or answers 429 or 5xx,
may be there in a minute (Unavailable): a person is told at once, a restart by the launcher waits
(`backoff.until_available`).
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic_core import from_json

from ...errors import ConfigError, Unavailable
from ...protocol import MAX_REPLY_BYTES, EnvSchema, Health


def check_url(url: str) -> None:
    """Check that a text can be the URL of a server.

    Raises:
        ConfigError: It cannot.
    """
    if not url.startswith(("http://", "https://")):
        fault = "is not an HTTP URL" if "://" in url else "has no scheme"
        raise ConfigError(f"Environment URL {url!r} {fault}. Write http://host:port.")
    try:
        urlsplit(url).port  # noqa: B018  # reading it raises for a port that is not a number
        url.encode()
    except ValueError as e:
        raise ConfigError(f"Environment URL {url!r} is not a URL: {e}. Write http://host:port.") from None


def probe_env(url: str, *, token: str | None = None, timeout_s: float = 5.0) -> tuple[Health, EnvSchema]:
    """Return the health and the schema of a server.

    Args:
        url: Its base URL.
        token: Its bearer token.
        timeout_s: Deadline of each request in seconds.

    Raises:
        Unavailable: The server does not answer.
        ConfigError: It needs another token, or speaks another protocol.
    """
    base = url.rstrip("/")
    check_url(base)
    health = _get(f"{base}/health", token, timeout_s)
    schema = _get(f"{base}/schema", token, timeout_s)
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
    # As in the client: environment servers are never behind a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            return from_json(reply.read(MAX_REPLY_BYTES + 1))
    except urllib.error.HTTPError as e:
        remedy = "Point env.url at a server of env_servers."
        if e.code in (401, 403):
            fact = "The token that was sent is not the server's" if token else "No token was sent"
            remedy = f"{fact}: put the server's token into the environment variable TIR_ENV_TOKEN."
        kind = Unavailable if e.code == 429 or e.code >= 500 else ConfigError
        raise kind(f"{url} answered {e.code} {e.reason}. {remedy}") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as e:
        raise Unavailable(
            f"{url} does not answer: {getattr(e, 'reason', e)} (waited at most {timeout_s:g} s). Start the server, or"
            " unset env.url to have one started."
        ) from None
    except ValueError:
        raise ConfigError(f"{url} answers, but not with JSON. Point env.url at a server of env_servers.") from None
