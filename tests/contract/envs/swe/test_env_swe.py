"""swe as it is used: a server, rows made for it, a session that mends its bug, rows of another's form with a mirror."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from env_servers.python_tir.isolation import core_wait
from env_servers.python_tir.sandbox import NoCore, SandboxError
from env_servers.swe import examine, make_tasks
from env_servers.swe import session as session_module
from env_servers.swe.backend import Local
from env_servers.swe.env import LIMITS, Shared, SweEnv
from env_servers.swe.start import new_sandbox, shared
from openrlhf_tir.config import Config
from openrlhf_tir.engines.codec import HfCodec
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rollout.episode import Limits, run_episode
from openrlhf_tir.rollout.protocols import make
from openrlhf_tir.rollout.protocols.chat_format import ChatFormat
from openrlhf_tir.types import Task, Trajectory
from tests.step_reply import reply_of
from tests.unit.rollout.protocols.chat_models import tokenizer
from tests.unit.rollout.protocols.test_chat_rendering import Said

from ...env_process import Http, env_server
from ...swe_hostile import BUG, CODE, GOOD, MEND, task

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")]


def call(name: str, **arguments: object) -> str:
    return json.dumps([{"name": name, "arguments": arguments}])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two rows, made by the command of the docs."""
    out = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    command = [
        sys.executable, "-m", "env_servers.swe.make_tasks", "--count", "2", "--seed", "3", "--repos", "roman", "lru",
        "--out", str(out),
    ]  # fmt: skip
    assert f"{out}: 2 " in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in out.read_text().splitlines()]


def commit(repo, files: dict[str, str]) -> str:
    for path, text in files.items():
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text(text)
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


BASE = "def twice(x):\n    return 2 * x + 1\n"
INI = "[pytest]\naddopts = --no-such-option\npythonpath = src\n"
OLD_TEST = "import lib\n\n\ndef test_zero():\n    assert lib.twice(-1) == -1\n"
TEST_PATCH = """diff --git a/tests/test_lib.py b/tests/test_lib.py
--- a/tests/test_lib.py
+++ b/tests/test_lib.py
@@ -2,4 +2,8 @@


 def test_zero():
-    assert lib.twice(-1) == -1
+    assert lib.twice(0) == 0
+
+
+def test_two(tens):
+    assert lib.twice(tens) == 20
"""


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    top = tmp_path_factory.mktemp("mirror")
    (top / "o").mkdir()
    conftest = "import pytest\n\n\n@pytest.fixture\ndef tens():\n    return 10\n"
    base = commit(
        top / "o" / "lib",
        {"src/lib.py": BASE, "pytest.ini": INI, "tests/test_lib.py": OLD_TEST, "conftest.py": conftest},
    )
    names = ["tests/test_lib.py::test_zero", "tests/test_lib.py::test_two"]
    row = {
        "repo": "o/lib",
        "base_commit": base,
        "test_patch": TEST_PATCH.replace("\n\n\n def", "\n \n \n def"),
        "FAIL_TO_PASS": names,
        "PASS_TO_PASS": [],
    }
    return top, row


@pytest.fixture(scope="module")
def server(tmp_path_factory, mirror):
    with env_server(
        "env_servers.swe", tmp_path_factory.mktemp("env"), "--mirror", str(mirror[0]), "--max-turns", "6",
        "--command-timeout", "15", "--evaluations", "1",
    ) as (url, _):  # fmt: skip
        yield url


@pytest.mark.parametrize("which", [slice(1), pytest.param(slice(1, None), marks=pytest.mark.long)])
async def test_every_generated_bug_is_fixed_by_its_gold_patch_through_the_tools(server, made, which):
    async with Http(server) as http:
        for row in made[which]:
            session = await http.open(row["meta"])
            apply = f"git apply - <<'EOF_PATCH'\n{row['label']}EOF_PATCH\ngit diff --stat"
            _, reply, _ = await http.step(session, 0, call("execute_bash", command=apply))
            assert "1 file changed" in reply["observation"] and reply["reward"] is None, reply
            _, last, _ = await http.step(session, 1, call("finish"))
            assert (last["reward"], last["done"], last["signals"]["evaluation"]) == (1.0, True, "resolved"), last


async def test_evaluations_are_counted_separately_from_steps(server):
    """One session mends the bug, the other does not, and is judged sooner."""
    async with Http(server) as http:
        body = []
        for command in (MEND, NOTE.format(CODE)):
            calls = [*json.loads(call("execute_bash", command=command)), *json.loads(call("finish"))]
            body.append(http.step_body(await http.open(task()), 0, json.dumps(calls), 60))
        replies = asyncio.create_task(http.send("POST", "/step_batch", json=body))
        seen = set()
        while not replies.done():
            _, text, _ = await http.send("GET", "/metrics")
            await asyncio.sleep(0.02)
            seen |= {
                line
                for line in text.splitlines()
                if line.startswith(("env_evaluating", "env_evaluations_waiting", "env_repositories"))
            }
    assert sorted(json.loads(line)["reward"] for line in replies.result()[1].splitlines()) == [0.0, 1.0]
    assert {"env_evaluating 1.0", "env_evaluations_waiting 1.0"} <= seen and "env_evaluating 2.0" not in seen


async def test_rows_describe_the_bug_and_not_its_fix(made):
    for row in made:
        mended = [
            line[1:].strip()
            for line in row["label"].splitlines()
            if line.startswith("+") and not line.startswith("+++")
        ]
        (system, user) = row["prompt"]
        assert system["role"] == "system" and "It should hold:" in user["content"]
        assert row["meta"]["repo"] in user["content"] and not any(line in user["content"] for line in mended)


async def test_an_unchanged_repository_has_reward_0_and_a_finished_task_is_over(server):
    async with Http(server) as http:
        session = await http.open(task())
        _, last, _ = await http.step(session, 0, call("finish"))
        assert (last["reward"], last["done"], last["signals"]["evaluation"]) == (0.0, True, "patch_empty")
        _, after, _ = await http.step(session, 1, call("execute_bash", command=MEND))
        assert after["done"] and after["reward"] is None and after["outcome"] == "model_error"


async def test_a_fix_by_the_editor_is_judged_at_the_last_turn(ours):
    async with opened(ours, {**task(), "max_turns": 3}) as env:
        path = f"/tmp/roman/{CODE}"
        no = await env.step(
            call("str_replace_editor", command="str_replace", path=path, old_str="nowhere", new_str=""), 60
        )
        assert (no.outcome, no.signals["error_type"], no.reward) == ("model_error", "refused", None)
        yes = await env.step(
            call("str_replace_editor", command="str_replace", path=path, old_str=BUG, new_str=GOOD), 60
        )
        assert yes.outcome == "ok" and "has been edited" in yes.observation
        last = await env.step(call("execute_bash", command="true"), 60)
        assert (last.reward, last.done, last.truncated, last.signals["finished"]) == (1.0, False, True, False)


async def test_an_episode_is_truncated_when_the_turns_of_its_protocol_are_used_up(ours):
    async with opened(ours, task()) as env:
        action = json.dumps(
            [{"name": "execute_bash", "arguments": {"command": MEND}}, {"name": "finish", "arguments": {"cut": "true"}}]
        )
        last = await env.step(action, 60)
        assert (last.reward, last.done, last.truncated) == (1.0, False, True)


async def test_a_wrong_call_is_answered_with_the_error_and_nothing_runs(server):
    async with Http(server) as http:
        session = await http.open(task())
        mixed = json.dumps(
            [{"name": "execute_bash", "arguments": {"command": "touch x"}}, {"name": "fly", "arguments": {}}]
        )
        for step, (action, kind) in enumerate(
            [
                ("ls", "bad_call"),
                ("[]", "bad_call"),
                (mixed, "unknown_function"),
                ('{"name": "execute_bash"}', "bad_call"),
            ]
        ):
            _, reply, _ = await http.step(session, step, action)
            assert (reply["outcome"], reply["signals"]["error_type"]) == ("model_error", kind), reply
        _, reply, _ = await http.step(session, 4, call("execute_bash", command="ls x"))
        assert "exit code 2" in reply["observation"]


ODD = [
    call("execute_bash", command="mkdir $'\\xff'; cd $'\\xff'; touch $'a\\xfe'; ls; pwd"),
    call("execute_bash", command="echo \ud800 \udc80 \0 \u00e4"),
    call("str_replace_editor", command="view", path="/tmp/roman/"),
    call("str_replace_editor", command="view", path="/tmp/\0x"),
    call("str_replace_editor", command="create", path="/tmp/\ud800", file_text="x"),
    call("str_replace_editor", command="create", path="/tmp/odd", file_text="\ud800"),
    call("str_replace_editor", command="view", path="/tmp/odd"),
    call("str_replace_editor", command="create", path="/proc/self/x", file_text=""),
    call("str_replace_editor", command="create", path="/tmp/" + "x" * 300, file_text=""),
    call("str_replace_editor", command="view", path="/dev/zero"),
    call("execute_bash", command="for i in $(seq 100); do sleep 50 & done 2>/dev/null; exit"),
    call("execute_bash", command="echo here"),
    call("finish"),
]


async def test_odd_names_texts_and_states_never_make_the_server_fail(server):
    session = ""
    async with Http(server) as http:
        for i, action in enumerate(ODD):
            step = i % 5
            session = session if step else await http.open(task())
            status, reply, _ = await http.step(session, step, action)
            assert status == 200 and reply["outcome"] in ("ok", "model_error"), (action, reply)


async def test_a_killed_session_is_restarted_and_the_model_reads_so(server):
    async with Http(server) as http:
        session = await http.open(task())
        _, lost, _ = await http.step(session, 0, call("execute_bash", command=f"{MEND}; kill -9 -1"))
        assert lost["signals"]["error_type"] == "ended" and "begins anew" in lost["observation"]
        _, second, _ = await http.step(session, 1, call("execute_bash", command="git status --short; pwd"))
        assert second["observation"].startswith("/tmp/roman\n")


@pytest.mark.parametrize(
    "malformed",
    [
        {},
        {"repo": "nowhere"},
        {"repo": "roman", "files": {"new.py": ""}},
        {"repo": "o/lib"},
        {"repo": "o/lib", "base_commit": "HEAD"},
        {"repo": "o/lib", "base_commit": "--help", "test_patch": "x", "FAIL_TO_PASS": ["a"]},
    ],
)
async def test_a_task_that_cannot_be_started_is_the_callers_mistake(server, malformed):
    async with Http(server) as http:
        status, body, _ = await http.send("POST", "/reset", json={"task": malformed})
        assert status == 422, body


NOTE = "echo '# seen' >> {}"
"""A patch that mends nothing and breaks nothing."""


def whole(body: str) -> dict[str, object]:
    test = "from f import f\n\n\ndef test_f():\n    assert f(2) == 4\n"
    return {"repo": "f", "files": {"f.py": f"def f(x):\n    return {body}\n"}, "tests": {"test_f.py": test}}


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"repo": "roman"}, CODE, r"RowUnfit: .*\broman\b"),
        (whole("x * 2"), "f.py", r"RowUnfit: .*\bf: "),
    ],
)
async def test_a_task_without_a_bug_rewards_no_patch(server, changes, path, message):
    async with Http(server) as http:
        session = await http.open(changes)
        action = json.dumps(
            [
                {"name": "execute_bash", "arguments": {"command": NOTE.format(path)}},
                {"name": "finish", "arguments": {}},
            ]
        )
        _, last, _ = await http.step(session, 0, action)
        assert (last["outcome"], last["reward"]) == ("env_error", None)
        assert re.match(message, last["signals"]["error"])
        if "tests" in changes:
            status, body, _ = await http.send("POST", "/reset", json={"task": changes})
            assert status == 422 and "`files`" in body["detail"]


async def test_a_repository_of_the_rows_own_is_judged_by_its_tests(server):
    async with Http(server) as http:
        for factor, reward in ((2, 1.0), (3, 0.0)):
            session = await http.open(whole("x"))
            await http.step(session, 0, call("execute_bash", command=f"sed -i '2s/x/x * {factor}/' f.py"))
            _, last, _ = await http.step(session, 1, call("finish"))
            assert (last["outcome"], last["reward"]) == ("ok", reward), last


MEND_LIB = "sed -i 's/ + 1//' src/lib.py"
HOOK = """import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    made = yield
    if item.nodeid.startswith("tests/test_lib.py"):
        made.get_result().outcome = "passed"
@pytest.fixture
def tens(): return 10
"""
"""In place of a conftest.py: the hidden tests pass, and those that must fail do not."""
LEFT_OUT = {
    "the right change and other tests": ["conftest.py", "tests/test_lib.py"],
    "another conftest": ["conftest.py"],
    "an ini": ["pytest.ini"],
    "a directory in place of the tests": ["tests/test_lib.py", "tests/test_lib.py/x"],
}
INSIDE = {
    "nothing": ("true", 0.0),
    "the right change": (MEND_LIB, 1.0),
    "the right change and other tests": (
        f"{MEND_LIB}; echo 'def test_zero(): assert False' > tests/test_lib.py; rm conftest.py",
        1.0,
    ),
    "another conftest": (f"cat > conftest.py <<'EOF'\n{HOOK}EOF", 0.0),
    "an ini": (f"printf '[pytest]\\npython_functions = nothing_*\\npythonpath = src\\n' > pytest.ini; {MEND_LIB}", 1.0),
    "a directory in place of the tests": (
        f"rm tests/test_lib.py; mkdir tests/test_lib.py; touch tests/test_lib.py/x; {MEND_LIB}",
        1.0,
    ),
    "exit 0": ("echo 'import os; os._exit(0)' > src/lib.py", 0.0),
    "a skip": ("echo 'import pytest; pytest.skip(\"no\", allow_module_level=True)' > src/lib.py", 0.0),
    "a report of its own": ("echo 'import os; os.write(4, b\"{}\"); os._exit(0)' > src/lib.py", 0.0),
    "reports that pass": (
        "printf 'import _pytest.reports as r\\nold = r.TestReport.from_item_and_call\\ndef new(item, call):\\n"
        '    x = old(item, call); x.outcome = "passed"; return x\\n'
        "r.TestReport.from_item_and_call = new\\ntwice = None\\n' > src/lib.py",
        0.0,
    ),
    "assertions that pass": (
        "printf 'import _pytest.python as p\\np.Function.runtest = lambda self: None\\n' > src/lib.py",
        0.0,
    ),
    "a pytest of its own": (
        "mkdir pytest; echo 'def main(*a, **k): return 0' > pytest/__init__.py;"
        " echo 'import os; os._exit(0)' > json.py",
        0.0,
    ),
    "never ends": ("echo 'while True: pass' > src/lib.py", 0.0),
}


@pytest.fixture(scope="module")
def ours(mirror):
    """One falsified copy of the tests per judgement; how many it takes is tried in test_swe_patches.py."""
    sandbox = new_sandbox(LIMITS, evaluations=1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(examine, "MAX_COPIES", 1)
        yield shared(
            sandbox,
            evaluations=1,
            command_s=60.0,
            test_s=60.0,
            max_turns=9,
            mirror=mirror[0],
            sessions=4,
            memory=2 << 30,
        )
    asyncio.run(sandbox.close())


@asynccontextmanager
async def opened(ours: Shared, row: dict) -> AsyncIterator[SweEnv]:
    """A session of the row."""
    env = SweEnv(ours)
    try:
        await env.reset(row, 0)
        yield env
    finally:
        await env.close()


@pytest.mark.parametrize("name", INSIDE)
async def test_rows_of_another_form_are_judged_by_their_tests(ours, mirror, name, monkeypatch):
    if name == "never ends":
        monkeypatch.setattr(ours.backend.grader._examiner, "_test_s", 2.0)
        monkeypatch.setattr(core_wait, "LEAST_SHARE", 0.0)
    command, reward = INSIDE[name]
    async with opened(ours, mirror[1]) as env:
        await env.step(call("execute_bash", command=command), 60)
        last = await env.step(call("finish"), 60)
    assert (last.reward, last.signals["patch_left_out"]) == (reward, LEFT_OUT.get(name, [])), last.signals


UNFIT = {
    "no such test": (
        {"FAIL_TO_PASS": ["tests/test_lib.py::test_two", "tests/test_lib.py::nope"]},
        r"FAIL_TO_PASS .*'tests/test_lib\.py::nope'",
    ),
    "no such test to pass": (
        {"PASS_TO_PASS": ["tests/test_lib.py::nope"]},
        r"PASS_TO_PASS .*'tests/test_lib\.py::nope'",
    ),
    "a test that passes": (
        {"test_patch": TEST_PATCH.replace("twice(0) == 0", "twice(0) == 1").replace("\n\n\n def", "\n \n \n def")},
        r"FAIL_TO_PASS .*'tests/test_lib\.py::test_zero'",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
async def test_a_row_that_its_own_tests_contradict_is_the_callers_mistake(server, mirror, name):
    change, message = UNFIT[name]
    async with Http(server) as http:
        status, body, _ = await http.send("POST", "/reset", json={"task": {**mirror[1], **change}})
        assert status == 422 and re.search(message, body["detail"]), body


GOLD = "--- a/src/lib.py\n+++ b/src/lib.py\n@@ -1,2 +1,2 @@\n def twice(x):\n-    return 2 * x + 1\n+    return 2 * x\n"
BAD_ROWS = {
    "a test that is not there": UNFIT["no such test"][0],
    "a test that is to pass and does not": {
        "FAIL_TO_PASS": ["tests/test_lib.py::test_two"],
        "PASS_TO_PASS": ["tests/test_lib.py::test_zero"],
    },
    "a gold patch that does not mend it": {"patch": GOLD.replace("+    return 2 * x", "+    return 3 * x")},
    "a gold patch that does not apply": {"patch": GOLD.replace("src/lib.py", "src/none.py")},
    "no gold patch": {"patch": ""},
}


def test_rows_are_tried_when_tasks_are_made_and_unfit_ones_are_reported_and_left_out(
    mirror, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(examine, "MAX_COPIES", 1)
    row = {**mirror[1], "problem_statement": "twice(0) is 1.", "instance_id": "lib-1", "patch": GOLD}
    own = {**whole("x * 3"), "problem_statement": "It should be twice.", "patch": ""}
    fix = "--- a/f.py\n+++ b/f.py\n@@ -1,2 +1,2 @@\n def f(x):\n-    return x * 3\n+    return x * 2\n"
    rows = [row, *({**row, **change} for change in BAD_ROWS.values()), {**own, "patch": fix}, own]
    given, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(json.dumps(r) + "\n" for r in rows))
    flags = ["--rows", str(given), "--mirror", str(mirror[0]), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["make_tasks", *flags])
    make_tasks.main()
    said = capsys.readouterr().err
    made = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["meta"]["repo"], r["label"]) for r in made] == [("o/lib", GOLD), ("f", fix)]
    assert "patch" not in made[0]["meta"] and set(made[1]["meta"]) >= {"files", "tests"}
    for line in (2, 3, 4, 5, 6, 8):
        assert f"{given}:{line}: " in said
    given.write_text(json.dumps({**row, "base_commit": "0" * 40}) + "\n")
    with pytest.raises(SystemExit, match=rf"\b1 .*{given}"):
        make_tasks.main()


class InProcess:
    """A trajectory's session, without HTTP."""

    server = None

    def __init__(self, env: SweEnv) -> None:
        self.env = env

    async def reset(self) -> str:
        return await self.env.reset(task(), 0)

    async def step(self, action: str, *, step_id: int) -> StepReply:
        return reply_of(await self.env.step(action, 60), step_id)


def function(name: str, **parameters: str) -> str:
    return (
        f"<function={name}>\n"
        + "".join(f"<parameter={k}>{v}</parameter>\n" for k, v in parameters.items())
        + "</function>"
    )


async def played(ours: Shared, max_calls: int, *texts: str) -> Trajectory:
    """A conversation in SkyRL's protocol as Qwen's chat template writes it."""
    cfg = Config(
        env={"name": "swe", "protocol": "skyrl", "max_calls": max_calls, "output_max_tokens": 300},
        data={"apply_chat_template": True},
    )
    codec = HfCodec(tokenizer("qwen2_5"))
    chats = ChatFormat.of(cfg, cfg.env, codec, tokenizer("qwen2_5"))
    prompt, protocol, env = chats.task(Task("Mend it.", "-")), make(cfg.env), SweEnv(ours)
    try:
        return await run_episode(
            codec.encode_prompt(prompt.prompt),
            index=0,
            engine=Said(codec, *texts, stop="</function>"),
            env=InProcess(env),
            codec=codec,
            protocol=protocol,
            limits=Limits(8000, 300),
            request_id="r",
            renderer=chats.renderer(protocol, prompt),
        )
    finally:
        await env.close()


async def test_an_episode_in_skyrls_protocol_is_rewarded(ours):
    t = await played(
        ours, 50, "I mend it. " + function("execute_bash", command=MEND), "Now I am done. " + function("finish")
    )
    assert t.failed is None and [c.reward for c in t.calls] == [None, 1.0] and t.calls[-1].done
    assert [s.source for s in t.segments] == ["model", "env", "model", "env"]
    assert t.segments[1].text.startswith(
        "<|im_end|>\n<|im_start|>user\nEXECUTION RESULT of [execute_bash]:\n[Current working directory: /tmp/roman]\n"
    )
    assert t.segments[1].text.endswith("exit code 0]<|im_end|>\n<|im_start|>assistant\n")


async def test_an_episode_whose_turns_are_used_up_is_judged(ours):
    t = await played(
        ours, 2, function("execute_bash", command=MEND), "What shall I do?" + function("execute_bash", command="ls")
    )
    assert [c.reward for c in t.calls] == [None, 1.0] and t.calls[-1].truncated and t.finish_reason == "length"


async def test_a_failed_sandbox_gives_no_reward(ours):
    class Broken:
        async def evaluate(self, *given: object) -> None:
            raise SandboxError("the slot that ran the snippet ended")

    env = SweEnv(Shared(Local(ours.backend.notebooks, ours.backend.sources, Broken()), ours.stages, 60.0))
    try:
        await env.reset(task(), 0)
        await env.step(call("execute_bash", command=MEND), 60)
        with pytest.raises(SandboxError):
            await env.step(call("finish"), 60)
    finally:
        await env.close()


@pytest.mark.parametrize("clock", ["of git", "of the call"])
async def test_a_patch_that_git_does_not_make_in_time_on_a_busy_machine_is_no_reward(ours, monkeypatch, clock):
    slow = {
        "of git": "programs['workspace'].GIT_S = 0.0\n",
        "of the call": "workspace.patch = lambda max_bytes: __import__('time').sleep(600)\n",
    }
    monkeypatch.setattr(session_module, "_OPEN", session_module._OPEN + slow[clock])
    sandbox = ours.backend.notebooks.sandbox
    for least_share in (0.0, 2.0):
        monkeypatch.setattr(core_wait, "LEAST_SHARE", least_share)
        monkeypatch.setattr(sandbox, "limits", LIMITS)
        env = SweEnv(ours)
        try:
            await env.reset(task(), 0)
            await env.step(call("execute_bash", command=MEND), 60)
            monkeypatch.setattr(session_module, "PATCH_S", 2.0)
            monkeypatch.setattr(sandbox, "limits", replace(LIMITS, code_timeout_s=2.0))
            if least_share:
                with pytest.raises(NoCore):
                    await env.step(call("finish"), 60)
            else:
                last = await env.step(call("finish"), 60)
                assert (last.reward, last.signals["evaluation"]) == (0.0, "patch_failed")
        finally:
            await env.close()
