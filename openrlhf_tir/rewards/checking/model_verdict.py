"""Let a language model judge whether an answer is the gold answer, by one chat request to an OpenAI-compatible server.

    (url, model, question, answer, gold) ──> 1.0: Correct; 0.0: Incorrect, or a reply that says neither

xVerify does so for ZeroTIR (arXiv 2505.07773, section 3); the prompt is our own. The request blocks, so a reward makes
it through `RewardContext.run_in_worker`. A server that is down, slow or gives no readable reply is tried again within
the deadline. After that a VerifierError fails the sample, which does not get a reward of 0.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request

from ...config.sections.reward import WALL_NAME
from ...errors import VerifierError
from ...waiting.backoff import TRANSIENT_STATUSES, backoff_s, jittered

CHAT = "/chat/completions"
MAX_CHARS = 4000
"""Characters of the question, from its start, and of the answer, up to its end, that the model sees."""
MAX_TOKENS = 256
"""Tokens of the reply at most: a verdict, or a short thought and a verdict."""
REPLY_BYTES = 1 << 20
FIRST_PAUSE_S = 0.5
SHARE = 0.9
"""Share of the deadline that is used, so that the error says what the server did before the worker is killed."""

PROMPT = """Compare a candidate's final answer with the reference answer of a problem. Do not solve the problem.
They agree if they are the same value or expression, however written: \
1/2 and 0.5, 50% and 0.5, x=3 and 3, with or without units or LaTeX.
An answer that is missing, cut off or leaves a choice does not agree.

Problem:
{question}

Candidate's answer:
{answer}

Reference answer:
{gold}

Reply with one word: Correct or Incorrect."""
_WORD = re.compile(r"\b(in|not[\s*]+|\w+n['’]t[\s*]+)?correct\b", re.IGNORECASE)


def verdict(url: str, model: str, token_env: str, question: str, answer: str, gold: str, deadline_s: float) -> float:
    """Return 1.0 if the model finds the answer right, else 0.0; `chat` has the arguments.

    Raises:
        VerifierError: The model gave no reply in time, or refused the request.
    """
    content = PROMPT.format(question=question[:MAX_CHARS], answer=answer[-MAX_CHARS:], gold=gold[:MAX_CHARS])
    return read(chat(url, model, token_env, content, deadline_s))


def chat(
    url: str,
    model: str,
    token_env: str,
    content: str,
    deadline_s: float,
    max_tokens: int = MAX_TOKENS,
    settings: str = "reward.options.verifier_url and verifier_model",
    deadline: str = WALL_NAME,
) -> str:
    """Return a model's greedy reply to one message.

    Args:
        url: Base URL of an OpenAI-compatible server.
        model: The model's name there.
        token_env: Name of the environment variable with the bearer token, if there is one.
        content: The message.
        deadline_s: Seconds until the reply must be there, retries included.
        max_tokens: Length of the reply.
        settings: What to correct where the server refuses, for the message.
        deadline: The setting of the deadline, for the message.

    Raises:
        VerifierError: There is no reply in time, or the server refuses the request.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    token = os.environ.get(token_env) if token_env else None
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    target = url.rstrip("/")
    request = urllib.request.Request(
        target if target.endswith(CHAT) else target + CHAT, json.dumps(body).encode(), headers
    )
    return _reply(request, time.monotonic() + SHARE * deadline_s, f"{deadline} = {deadline_s:g}", settings)


def read(reply: str) -> float:
    """Return the last verdict in a model's reply; 0.0 if there is none, so that the rule alone decides, as in the
    reference."""
    verdicts = list(_WORD.finditer(reply))
    return float(bool(verdicts) and verdicts[-1][1] is None)


def _reply(request: urllib.request.Request, until: float, deadline: str, settings: str) -> str:
    """Send a request, repeatedly if necessary, and return the text of the reply. Raises VerifierError."""
    failures = 0
    while True:
        try:
            with urllib.request.urlopen(request, timeout=max(0.001, until - time.monotonic())) as response:
                return _message_content(response.read(REPLY_BYTES))
        except urllib.error.HTTPError as e:
            fault = f"answered HTTP {e.code}: {_beginning(e)!r}"
            if e.code not in TRANSIENT_STATUSES:
                raise VerifierError(f"The model at {request.full_url} {fault}. Correct {settings}.") from None
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, RecursionError) as e:
            # no connection, a reply that breaks off, or not the reply of a chat
            fault = f"gave no verdict ({type(e).__name__}: {e})"
        pause = jittered(backoff_s(failures, first_s=FIRST_PAUSE_S))
        if time.monotonic() + pause >= until:
            raise VerifierError(f"The model at {request.full_url} {fault}, {failures + 1} times within {deadline}.")
        time.sleep(pause)
        failures += 1


def _beginning(error: urllib.error.HTTPError) -> bytes:
    """Return the beginning of the body of a refusal; nothing if the connection breaks in it."""
    try:
        return error.read(200)
    except (OSError, http.client.HTTPException):
        return b""


def _message_content(body: bytes) -> str:
    """Return the text of a chat reply. Raises ValueError, LookupError, TypeError or RecursionError for another one."""
    content = json.loads(body)["choices"][0]["message"]["content"]
    if not isinstance(content, str):
        raise TypeError(f"the message's content is {content!r}")
    return content
