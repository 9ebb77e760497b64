"""The model verifier of ZeroTIR: max(rule, model), what its words mean, and that its faults are no reward. A real HTTP
server on loopback."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from openrlhf_tir.config import Reward
from openrlhf_tir.errors import ConfigError, VerifierError
from openrlhf_tir.rewards.checking.model_verdict import read, verdict
from openrlhf_tir.rewards.context import InlineServices
from openrlhf_tir.rewards.limits import RewardLimits
from openrlhf_tir.rewards.pool import RewardPool
from openrlhf_tir.waiting.deadlines import Deadline
from tests.unit.rewards.reward_fakes import in_run, reward_of, says, task


def chat(words) -> tuple[int, bytes]:
    return 200, json.dumps({"choices": [{"message": {"content": words}}]}).encode()


@contextmanager
def server(*replies):
    """Answers with `replies` in turn, the last one for ever; bytes are sent as they are. Yields (URL, requests)."""
    left, asked = list(replies), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers.get("Authorization"), body))
            reply = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(reply, bytes):
                self.wfile.write(reply)
                return
            status, content = reply
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/v1", asked
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def ask_of(url, deadline_s=20.0, token_env=""):
    return verdict(url, "judge", token_env, "1+1?", "two", "2", deadline_s)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("Correct", 1.0),
        ("**incorrect**.", 0.0),
        ("not incorrect: Correct", 1.0),
        ("maybe", 0.0),
        ("Incorrectly", 0.0),
        ("It is not correct.", 0.0),
        ("The answer isn’t correct.", 0.0),
        ("It is not **correct**.", 0.0),
    ],
)
def test_the_last_verdict_in_the_models_words_counts_and_no_verdict_is_a_no(words, value):
    assert read(words) == value


def test_question_answer_and_gold_are_asked_for_with_the_token_of_the_environment(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "secret")
    with server(chat("Correct")) as (url, asked):
        assert ask_of(url, token_env="A_TOKEN") == 1.0
        assert ask_of(url + "/chat/completions") == 1.0
    (path, authorization, body), (same_path, nothing, _) = asked
    assert (path, same_path, authorization, nothing) == (
        "/v1/chat/completions",
        "/v1/chat/completions",
        "Bearer secret",
        None,
    )
    assert all(text in body["messages"][0]["content"] for text in ("1+1?", "two", "Reference answer:\n2"))
    assert (body["model"], body["temperature"]) == ("judge", 0)


def test_a_busy_server_is_asked_again_and_a_wrong_model_at_once_refused():
    with server((503, b"later"), chat("Incorrect")) as (url, asked):
        assert ask_of(url) == 0.0
        assert len(asked) == 2
    with server((404, b"no such model")) as (url, asked), pytest.raises(VerifierError, match="HTTP 404"):
        ask_of(url)
    assert len(asked) == 1


CUT = b"HTTP/1.1 %s\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n{"


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(CUT % b"200 OK", id="cut in the body"),
        pytest.param(CUT % b"503 Busy", id="cut in the body of a refusal"),
        pytest.param(b"no status line\r\n\r\n", id="not HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 30_000, id="nested without end"),
    ],
)
def test_a_reply_that_breaks_off_or_is_garbage_is_asked_for_again(broken):
    with server(broken, chat("Correct")) as (url, asked):
        assert ask_of(url) == 1.0
    assert len(asked) == 2


def test_a_server_that_is_gone_or_says_nothing_readable_is_a_fault():
    with server(chat(None)) as (url, _), pytest.raises(VerifierError, match=f"{url}.*TypeError"):
        ask_of(url, deadline_s=0.2)
    with pytest.raises(VerifierError, match=r"12 \* reward\.verify_timeout_s = 0\.2"):
        ask_of(url, deadline_s=0.2)


WRONG_FOR_THE_RULE = r"so </think> <answer> \boxed{\text{two apples}} </answer>"
RIGHT = r"so </think> <answer> \boxed{2} </answer>"


def asked_of_a_model(response, said, **options):
    """(reward, what was asked for) with a model that says `said`."""
    questions = []

    class Services(InlineServices):
        async def run_in_worker(self, function, *args):
            if function is verdict:
                questions.append(args)
                return said
            return function(*args)

    context = in_run(
        name="zerotir", format="think_answer", options={"verifier_url": "http://v/v1", "verifier_model": "m", **options}
    )
    return reward_of("zerotir", says(response), task("2"), replace(context, services=Services())), questions


def test_the_better_of_rule_and_model_counts_and_the_model_is_asked_where_the_rule_says_no():
    (reward, correct, parts), questions = asked_of_a_model(WRONG_FOR_THE_RULE, 1.0)
    assert (reward, correct, parts["rule_rewards"], parts["model_rewards"], len(questions)) == (1.0, True, 0.0, 1.0, 1)
    assert asked_of_a_model(WRONG_FOR_THE_RULE, 0.0)[0].reward == 0.0
    (reward, *_), questions = asked_of_a_model(RIGHT, 0.0)
    assert (reward, questions) == (1.0, [])
    assert asked_of_a_model("so </think> <answer> 2 </answer>", 1.0)[1] == []


def test_a_url_without_a_model_is_refused():
    with pytest.raises(ConfigError, match=r"reward\.options\.verifier_url .*reward\.options\.verifier_model"):
        reward_of("zerotir", says(""), task("2"), in_run(name="zerotir", options={"verifier_url": "http://v/v1"}))


@pytest.mark.slow
async def test_in_a_worker_process_a_verdict_is_a_reward_and_a_dead_server_none():
    with server(chat("Correct")) as (url, _):
        pool = RewardPool(
            Reward(name="zerotir", format="think_answer", options={"verifier_url": url, "verifier_model": "m"})
        )
        try:
            assert (await pool.score(says(WRONG_FOR_THE_RULE), task("2"))).reward == 1.0
        finally:
            pool.close()
    pool = RewardPool(
        Reward(name="zerotir", format="think_answer", options={"verifier_url": url, "verifier_model": "m"}),
        limits=RewardLimits(check=Deadline(5.0, "the deadline")),
    )
    try:
        with pytest.raises(VerifierError, match="Connection refused"):  # and not that the worker was late
            await pool.score(says(WRONG_FOR_THE_RULE), task("2"))
    finally:
        pool.close()
