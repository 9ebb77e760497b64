"""swe on a runtime API: rows in containers of their own, and what becomes of a session when the API or a container
fails. The API is a stand-in that runs real processes (tests/contract/runtime_stand_in).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from env_servers.swe.env import SessionLate, Shared, SweEnv
from env_servers.swe.remote import backend, judging
from env_servers.swe.remote import http as http_module
from env_servers.swe.remote.api import RuntimeApi, StartOptions
from env_servers.swe.remote.backend import Remote
from env_servers.swe.remote.faults import (
    ImageUnavailable,
    ImageUnfit,
    LostInTests,
    RowBroken,
    RuntimeBroken,
    RuntimeLate,
    RuntimeLost,
    RuntimeRefused,
)
from env_servers.swe.remote.http import RuntimeHttp
from env_servers.swe.remote.image_layout import ImageLayout
from env_servers.swe.remote.jobs import Done, run_job, run_setup
from env_servers.swe.remote.judging import judged
from env_servers.swe.rows import RowUnfit
from env_servers.swe.stages import Stages
from env_servers.swe.task import SweTask
from tests.conftest import REPO

from ...env_process import Http, env_server
from ...runtime_stand_in.api import KEY, RuntimeStandIn
from ...runtime_stand_in.processes import killed
from .test_env_swe import BASE, HOOK, INI, OLD_TEST, TEST_PATCH, call, commit

pytestmark = [
    pytest.mark.extended,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]
MEND = "sed -i 's/ + 1//' /testbed/src/lib.py"
CONFTEST = "import pytest\n\n\n@pytest.fixture\ndef tens():\n    return 10\n"
RETRIES = 2


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> tuple[Path, dict]:
    """An image's /testbed: the repository at the base commit, with the later commit that mends it on a branch, and what
    a build has left."""
    top = tmp_path_factory.mktemp("image") / "testbed"
    top.mkdir()
    files = {
        "src/lib.py": BASE,
        "pytest.ini": INI,
        "tests/test_lib.py": OLD_TEST,
        "conftest.py": CONFTEST,
        ".gitignore": "*.so\n",
    }
    base = commit(top, files)

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(top), "-c", "user.name=a", "-c", "user.email=a@b", *words],
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    git("checkout", "-qb", "later")
    commit(top, {"src/lib.py": BASE.replace(" + 1", "")})
    git("checkout", "-q", base)
    (top / "built.txt").write_text("left by the build\n")
    (top / "fast.so").write_text("ignored\n")
    names = ["tests/test_lib.py::test_zero", "tests/test_lib.py::test_two"]
    patch = TEST_PATCH.replace("\n\n\n def", "\n \n \n def")
    return top, {
        "repo": "o/lib",
        "instance_id": "o__lib-1",
        "base_commit": base,
        "test_patch": patch,
        "FAIL_TO_PASS": names,
        "PASS_TO_PASS": [],
    }


@pytest.fixture
async def stand_in(image, tmp_path):
    async with RuntimeStandIn(tmp_path, {"eval.o_s_lib-1": image[0], "broken:1": image[0]}) as running:
        yield running


def remote_at(
    url: str, *, retries: int = RETRIES, start_s: float = 60.0, test_s: float = 60.0, checks: int = 0
) -> Remote:
    """`checks` 0: containers are counted, and a row's own run without a patch would be one of them."""
    api = RuntimeApi(RuntimeHttp(request_s=60.0, retries=retries), url, KEY, StartOptions(["serve-actions"], start_s))
    return Remote(
        api, ImageLayout(setup="true", test_s=test_s), image="eval.{instance_s}", retries=retries, checks=checks
    )


@pytest.fixture
async def remote(stand_in, monkeypatch, request):
    monkeypatch.setattr(http_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(judging, "SLOW_COPIES", 1)
    made = remote_at(stand_in.url, **getattr(request, "param", {}))
    yield made
    await made.close()
    assert (made.gauges["containers"](), stand_in.containers) == (0, {}), "every container has been stopped"


def env_of(remote: Remote, **fields) -> SweEnv:
    return SweEnv(Shared(remote, Stages(start=4, evaluate=4, max_waiting_starts=4), 60.0, **fields))


async def finished(remote: Remote, row: dict, *commands: str):
    """The last step of a session that ran these commands."""
    env = env_of(remote)
    try:
        await env.reset(row, 0)
        for command in commands:
            await env.step(call("execute_bash", command=command), 60)
        return await env.step(call("finish"), 60)
    finally:
        await env.close()


@asynccontextmanager
async def served(tmp_path, *flags: str):
    """A server of its own process: it is started and stopped in a thread, since the stand-in answers from this one."""
    server = env_server("env_servers.swe", tmp_path, *flags, env={"SANDBOX_API_KEY": KEY})
    url, _ = await asyncio.to_thread(server.__enter__)
    try:
        yield url
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)


async def test_a_row_is_worked_on_in_its_image_and_judged_in_a_fresh_container_through_the_server(
    stand_in, image, tmp_path
):
    flags = [
        "--runtime-api", stand_in.url, "--image", "eval.{instance_s}", "--repo-setup", "true",
        "--command-timeout", "15",
    ]  # fmt: skip
    async with served(tmp_path, *flags) as url, Http(url) as http:
        session, steps = await http.open(image[1]), itertools.count()

        async def says(name: str, **arguments: object) -> str:
            _, reply, _ = await http.step(session, next(steps), call(name, **arguments))
            assert reply["outcome"] == "ok" and reply["reward"] is None, reply
            return reply["observation"]

        shown = await says("execute_bash", command="x=5; cd src; ls")
        assert shown.startswith(
            "lib.py\n[Current working directory: /testbed/src]\n[Command finished with exit code 0]"
        )
        assert (await says("execute_bash", command="echo $x; sleep 300")).startswith(
            "5\n\n[The command timed out after 15 seconds.]"
        )
        assert "exit code 130]" in await says("execute_bash", command="C-c", is_input="true")
        assert "x + 1" in await says("str_replace_editor", command="view", path="/testbed/src/lib.py")
        await says("str_replace_editor", command="str_replace", path="/testbed/src/lib.py", old_str=" + 1", new_str="")
        _, last, _ = await http.step(session, next(steps), call("finish"))
        assert (last["reward"], last["done"], last["signals"]["evaluation"]) == (1.0, True, "resolved"), last
        _, text, _ = await http.send("GET", "/metrics")
        for line in ("env_runtime_faults_lost 0.0", "env_starting 0.0", "env_evaluations_waiting 0.0"):
            assert line in text.splitlines()
        assert (await http.send("GET", "/health"))[1]["isolation"] == "container"
    assert (stand_in.started, stand_in.stopped) == (4, 4), (
        "a session, a judgement, the falsified tests, the row without a patch; none is left"
    )


async def test_no_history_and_no_hidden_test_is_in_the_container_of_a_session(remote, image):
    env = env_of(remote)
    try:
        await env.reset(image[1], 0)
        looked = (
            "git status --short; git log --all --oneline | wc -l; git branch -a;"
            " git cat-file --batch-all-objects --batch-check | grep -c commit; ls *.txt *.so;"
            # -xdev: what is mounted below /tmp for the stand-in's sake is the machine's. The pattern is written so that
            # a file with this command in it is no match.
            " find /testbed /tmp -xdev -type f -exec grep -lF 'lib.twice(te''ns)' {} +"
        )
        lines = (await env.step(call("execute_bash", command=looked), 60)).observation.splitlines()
        assert lines[:5] == ["1", "* main", "1", "built.txt", "fast.so"] and lines[5].startswith("[Current"), lines
    finally:
        await env.close()


def hooked(path: str) -> str:
    return f"cat > {path} <<'EOF'\n{HOOK}EOF\n"


TESTS = "tests/test_lib.py"
CHEATS = {
    "nothing": ("true", 0.0, "patch_empty", []),
    "the right change, committed": (f"{MEND}; git commit -qam done", 1.0, "resolved", []),
    "the right change and other tests": (
        f"{MEND}; echo 'def test_zero(): assert False' > {TESTS}; rm conftest.py",
        1.0,
        "resolved",
        ["conftest.py", TESTS],
    ),
    "another conftest": (hooked("conftest.py"), 0.0, "tests_failed", ["conftest.py"]),
    "an ignored conftest": (
        hooked("tests/conftest.py") + "echo conftest.py > .gitignore; git add -f tests/conftest.py",
        0.0,
        "tests_failed",
        ["tests/conftest.py"],
    ),
    "an ini": (
        f"printf '[pytest]\\npython_functions = nothing_*\\npythonpath = src\\n' > pytest.ini; {MEND}",
        1.0,
        "resolved",
        ["pytest.ini"],
    ),
    "a link in place of the tests": (f"rm {TESTS}; ln -s ../src/lib.py {TESTS}; {MEND}", 1.0, "resolved", [TESTS]),
    "a directory in place of the tests": (
        f"rm {TESTS}; mkdir {TESTS}; touch {TESTS}/x",
        0.0,
        "tests_failed",
        [TESTS, f"{TESTS}/x"],
    ),
    "a directory in place of the tests, and the right change": (
        f"rm {TESTS}; mkdir {TESTS}; touch {TESTS}/x; {MEND}",
        1.0,
        "resolved",
        [TESTS, f"{TESTS}/x"],
    ),
    "a file in place of their directory": (f"rm -r tests; echo no > tests; {MEND}", 1.0, "resolved", ["tests", TESTS]),
    "exit 0": ("echo 'import os; os._exit(0)' > src/lib.py", 0.0, "no_report", []),
    "the exit of a set-up that failed": ("echo 'import os; os._exit(90)' > src/lib.py", 0.0, "no_report", []),
    "no repository any more": ("rm -rf .git", 0.0, "patch_failed", []),
    "a patch that is too large": ("head -c 600000 /dev/urandom | base64 > large", 0.0, "patch_too_large", []),
}


SHORT = ("nothing", "the right change, committed", "another conftest", "an ignored conftest")
"""The others in tests/run.sh long."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else pytest.mark.long) for name in CHEATS]
)
async def test_only_the_right_change_is_rewarded(remote, image, name):
    command, reward, reason, left_out = CHEATS[name]
    last = await finished(remote, image[1], command)
    assert (last.reward, last.signals["evaluation"]) == (reward, reason), last.signals
    assert last.signals["patch_left_out"] == left_out


@pytest.mark.long
async def test_a_patch_cannot_write_to_the_repositorys_own_git_directory(remote, image):
    """git refuses it, and the command `patch` does not."""
    work = await remote.begin(SweTask.model_validate(image[1]))
    try:
        report = await work.judge(b"--- /dev/null\n+++ b/.git/commondir\n@@ -0,0 +1 @@\n+/nowhere\n")
    finally:
        await work.close()
    assert (report.resolved, report.reason) == (False, "tests_failed")


FORGES = (
    "printf 'import _pytest.python as p\\nrun = p.Function.runtest\\n"
    'p.Function.runtest = lambda self: None if "test_lib" in self.nodeid else run(self)\\n\' > src/lib.py'
)
"""Code that makes the hidden tests pass, and no others."""
PLUGIN = (
    "mkdir src/evil.egg-info; printf '[pytest11]\\nevil = evil\\n' > src/evil.egg-info/entry_points.txt;"
    " printf 'Name: evil\\nVersion: 1\\n' > src/evil.egg-info/PKG-INFO;"
    " printf 'def pytest_collection_modifyitems(items): raise SystemExit(0)\\n' > src/evil.py;"
)


async def test_code_that_makes_tests_pass_is_caught_by_falsified_tests(remote, stand_in, image):
    last = await finished(remote, image[1], FORGES)
    assert (last.reward, last.signals["evaluation"]) == (0.0, "falsified_tests_passed"), last.signals
    assert stand_in.started == 3, "a session, a judgement, the falsified tests"


@pytest.mark.long
async def test_a_plugin_of_the_patch_is_not_loaded_and_its_metadata_does_no_harm(remote, image):
    last = await finished(remote, image[1], PLUGIN + MEND)
    assert (last.reward, last.signals["evaluation"]) == (1.0, "resolved"), last.signals


ENDS = "import os, signal; os.kill(-1, signal.SIGKILL)"


async def test_a_patch_that_ends_its_own_container_has_reward_0(remote, stand_in, image):
    last = await finished(remote, image[1], f"echo '{ENDS}' > src/lib.py")
    assert (last.reward, last.signals["evaluation"]) == (0.0, "container_ended"), last.signals
    assert (stand_in.started, remote.faults[LostInTests]) == (4, 2), (
        "a session, and a judgement without the patch between two with it"
    )


@pytest.mark.long
async def test_tests_that_end_their_container_without_the_patch_too_are_a_fault(remote, stand_in, image):
    row = {
        **image[1],
        "test_patch": image[1]["test_patch"]
        .replace("+def test_two(tens):", f"+def test_two(tens):\n+    {ENDS}")
        .replace("+2,8", "+2,9"),
    }
    with pytest.raises(LostInTests, match="RuntimeLost"):
        await finished(remote, row, MEND)
    assert (stand_in.started, remote.faults[LostInTests]) == (3, 2), "a session, a judgement, and one without the patch"


@pytest.mark.long
async def test_a_container_lost_once_while_tests_run_is_replaced(remote, stand_in, image, monkeypatch):
    runs = itertools.count()

    async def lost_first(container, script, files, seconds):
        if "tests.py" in files and next(runs) == 0:
            stand_in.containers[container.runtime_id].kill()
            lost = RuntimeLost("the node is gone")
            lost.began = True
            raise lost
        return await run_job(container, script, files, seconds)

    monkeypatch.setattr(judging, "run_job", lost_first)
    assert (await finished(remote, image[1], MEND)).reward == 1.0
    assert (stand_in.started, remote.faults[LostInTests]) == (5, 1), (
        "a session, a judgement without the patch between two with it, and the falsified tests"
    )


TIME_IS_UP, NO_REPORT = Done(124, {}), Done(0, {})


@pytest.mark.parametrize(
    ("stalls", "without", "done", "expected"),
    [
        pytest.param(1, False, TIME_IS_UP, ("resolved", 4, 1), id="once"),
        pytest.param(2, False, NO_REPORT, ("resolved", 6, 2), id="twice", marks=pytest.mark.long),
        pytest.param(9, False, TIME_IS_UP, ("time_limit", 6, 3), id="always with the patch"),
        pytest.param(9, False, NO_REPORT, ("no_report", 6, 3), id="no report with the patch", marks=pytest.mark.long),
        pytest.param(9, True, TIME_IS_UP, (None, 5, 3), id="without the patch too"),
    ],
)
async def test_endless_copies_are_the_patchs_fault_only_if_they_end_without_it(
    remote, stand_in, image, monkeypatch, stalls, without, done, expected
):
    """Expected are the verdict (None: a fault), the containers that were started, and the faults that were counted."""
    patched = set()
    stalled = itertools.count()

    async def laid_out(container, script, files, seconds):
        if files.get("model.patch"):
            patched.add(container.runtime_id)
        return await run_setup(container, script, files, seconds)

    async def stalling(container, script, files, seconds):
        is_copy = "tests.py" in files and "file.0" in files
        if is_copy and (without or container.runtime_id in patched) and next(stalled) < stalls:
            return done
        return await run_job(container, script, files, seconds)

    monkeypatch.setattr(judging, "run_setup", laid_out)
    monkeypatch.setattr(judging, "run_job", stalling)
    reason, containers, faults = expected
    if reason is None:
        with pytest.raises(LostInTests):
            await finished(remote, image[1], MEND)
    else:
        assert (await finished(remote, image[1], MEND)).signals["evaluation"] == reason
    assert (stand_in.started, remote.faults[LostInTests]) == (containers, faults)


@pytest.mark.parametrize("remote", [{"test_s": 2.0}], indirect=True)
async def test_a_patch_whose_tests_never_end_is_judged_when_their_time_is_up(remote, image):
    last = await finished(remote, image[1], "echo 'while True: pass' > src/lib.py")
    assert (last.reward, last.signals["evaluation"]) == (0.0, "time_limit")


class Fails:
    """The first `times` requests are answered so."""

    def __init__(self, times: int, status: int = 500) -> None:
        self.left, self.status = times, status

    async def __call__(self, request: web.Request) -> web.Response | None:
        self.left -= 1
        return web.json_response({"detail": "out of order"}, status=self.status) if self.left >= 0 else None


@pytest.mark.parametrize(
    ("api_call", "answer", "fault", "asked"),
    [
        ("GET /image_exists", Fails(1), None, 2),
        ("GET /image_exists", Fails(1, 404), None, 1),
        ("POST /start", Fails(1), None, 2),
        ("POST /start", Fails(1, 503), None, 2),
        ("POST /start", Fails(99), RuntimeBroken, (RETRIES + 1) ** 2),
        ("POST /start", Fails(99, 403), RuntimeRefused, 1),
        ("GET /runtime", Fails(2, 502), None, 3),
    ],
)
async def test_a_failing_api_is_retried_and_then_reported(remote, stand_in, image, api_call, answer, fault, asked):
    stand_in.answers[api_call] = Fails(answer.left, answer.status)
    env = env_of(remote)
    if fault is None:
        await env.reset(image[1], 0)
    else:
        with pytest.raises(fault):
            await env.reset(image[1], 0)
        assert remote.faults[fault] == (1 if fault is RuntimeRefused else RETRIES + 1)
    assert stand_in.asked[api_call] >= asked if api_call == "GET /runtime" else stand_in.asked[api_call] == asked
    await env.close()


async def test_a_start_whose_answer_is_lost_is_found_by_its_session(remote, stand_in, image):
    async def started_but_silent(request: web.Request) -> web.Response | None:
        stand_in.answers.pop("POST /start")
        await stand_in.start(request)
        return web.json_response({"detail": "bad gateway"}, status=502)

    stand_in.answers["POST /start"] = started_but_silent
    env = env_of(remote)
    await env.reset(image[1], 0)
    assert (stand_in.started, stand_in.asked["POST /start"]) == (1, 1)
    await env.close()


@pytest.mark.parametrize(
    ("row", "status", "fault"),
    [({"image": "nobody/has:1"}, "running", ImageUnavailable), ({}, "crashloopbackoff", ImageUnavailable)],
)
async def test_an_image_that_cannot_be_started_is_not_tried_again(remote, stand_in, image, row, status, fault):
    stand_in.pod_status = status
    with pytest.raises(fault, match="OOMKilled" if status != "running" else "nobody/has:1"):
        await env_of(remote).reset({**image[1], **row}, 0)
    assert stand_in.started == (status != "running") and remote.faults[fault] == 1


@pytest.mark.parametrize("remote", [{"start_s": 0.5, "retries": 0}], indirect=True)
async def test_a_container_that_never_answers_is_stopped(remote, stand_in, image):
    stand_in.pod_status = "pending"
    with pytest.raises(RuntimeLate, match="--start-timeout"):
        await env_of(remote).reset(image[1], 0)
    with pytest.raises(SessionLate, match="--start-workers"):
        await env_of(remote, start_s=0.2).reset(image[1], 0)


@pytest.mark.parametrize("ending", ["killed from outside", "ended by the model"])
async def test_a_container_that_dies_during_a_session_is_a_fault_and_no_reward(remote, stand_in, image, ending):
    env = env_of(remote)
    await env.reset(image[1], 0)
    if ending == "killed from outside":
        stand_in.containers["c0"].kill()
    with pytest.raises(RuntimeLost):
        await env.step(call("execute_bash", command="kill -9 -1"), 60)
    with pytest.raises(RuntimeLost):
        await env.step(call("finish"), 60)
    assert remote.faults[RuntimeLost] == 2
    await env.close()


@pytest.mark.parametrize("times", [1, 99])
async def test_a_container_that_dies_while_it_judges_is_replaced_and_never_a_reward_of_zero(
    remote, stand_in, image, monkeypatch, times
):
    env, left = env_of(remote), times
    await env.reset(image[1], 0)
    await env.step(call("execute_bash", command=MEND), 60)

    async def dies_first(container, *given):
        """The judging container is gone when its patch is to be laid out."""
        nonlocal left
        left -= 1
        if left >= 0:
            stand_in.containers[container.runtime_id].kill()
        return await judged(container, *given)

    monkeypatch.setattr(backend, "judged", dies_first)
    if times == 1:
        assert (await env.step(call("finish"), 60)).reward == 1.0
    else:
        with pytest.raises(RuntimeLost):
            await env.step(call("finish"), 60)
    assert (stand_in.started, remote.faults[RuntimeLost]) == ((4, 1) if times == 1 else (RETRIES + 2, RETRIES + 1))
    await env.close()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"instance_id": None}, ValueError),
        ({"FAIL_TO_PASS": ["test_zero (tests.Zero)"]}, ValueError),
        ({"base_commit": "0" * 40}, ImageUnfit),
    ],
)
async def test_a_row_that_cannot_be_started_is_named(remote, image, change, fault):
    with pytest.raises(fault):
        await env_of(remote).reset({**image[1], **change}, 0)


async def test_a_test_patch_that_does_not_apply_is_the_rows_fault_and_no_reward(remote, image):
    with pytest.raises(RowBroken, match="test_patch"):
        await finished(
            remote,
            {**image[1], "test_patch": image[1]["test_patch"].replace("lib.twice(-1) == -1", "lib.thrice(1)")},
            MEND,
        )


UNFIT_ROWS = {
    "no such test": (
        {"FAIL_TO_PASS": ["tests/test_lib.py::test_two", "tests/test_lib.py::nope"]},
        r"\bo__lib-1 .*: FAIL_TO_PASS .*'tests/test_lib\.py::nope'",
    ),
    "a test that passes": (
        {"FAIL_TO_PASS": ["tests/test_lib.py::test_two"], "base_commit": "later"},
        r"FAIL_TO_PASS .*'tests/test_lib\.py::test_two'",
    ),
}


@pytest.mark.parametrize("remote", [{"checks": 1}], indirect=True)
@pytest.mark.parametrize("name", UNFIT_ROWS)
async def test_a_row_that_its_own_tests_contradict_is_refused_and_never_a_reward(remote, stand_in, image, name):
    """The first session began before it was known: its patch is not judged. The next ones do not start."""
    change, message = UNFIT_ROWS[name]
    row = {**image[1], **change}
    with pytest.raises(RowUnfit, match=message):
        await finished(remote, row)  # an empty patch would be worth 0
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            await env_of(remote).reset(row, 0)
    assert stand_in.started == 2, "one session, and the row's tests once"


@pytest.mark.long
@pytest.mark.parametrize("remote", [{"checks": 1}], indirect=True)
async def test_a_valid_row_is_tried_once_for_all_its_sessions(remote, stand_in, image):
    last = await asyncio.gather(*(finished(remote, image[1], command) for command in (MEND, "touch x")))
    assert [step.reward for step in last] == [1.0, 0.0]
    assert (await finished(remote, image[1], MEND)).reward == 1.0
    assert stand_in.started == 9, "three sessions, three judgements, the row's tests once, falsified ones twice"


@pytest.mark.long
@pytest.mark.parametrize("remote", [{"checks": 1}], indirect=True)
async def test_a_container_that_is_lost_while_a_row_is_tried_says_nothing_about_the_row(
    remote, stand_in, image, monkeypatch
):
    """Lost twice: the session has failed. The next one of the row has it tried again."""
    runs = itertools.count()

    async def lost_first(container, script, files, seconds):
        if "tests.py" in files and next(runs) < 4:  # twice beside the session, twice for its judgement
            stand_in.containers[container.runtime_id].kill()
            lost = RuntimeLost("the node is gone")
            lost.began = True
            raise lost
        return await run_job(container, script, files, seconds)

    monkeypatch.setattr(judging, "run_job", lost_first)
    env = env_of(remote)
    await env.reset(image[1], 0)
    while trying := [t for t in asyncio.all_tasks() if t.get_name().endswith("as it is")]:
        await asyncio.wait(trying)
    with pytest.raises(LostInTests):
        await env.step(call("finish"), 60)
    await env.close()
    assert (await finished(remote, image[1], MEND)).reward == 1.0
    assert remote.faults[LostInTests] == 4


@pytest.mark.parametrize("remote", [{"checks": 1}], indirect=True)
async def test_a_server_that_stops_while_a_row_is_tried_leaves_no_container(remote, image):
    """The fixture counts what is left."""
    env = env_of(remote)
    await env.reset(image[1], 0)
    await env.close()


@pytest.mark.long
async def test_a_test_name_truncated_at_a_blank_stands_for_all_tests_with_that_prefix(remote, image):
    row = {
        **image[1],
        "test_patch": image[1]["test_patch"]
        .replace(
            "+def test_two(tens):",
            "+import pytest\n+@pytest.mark.parametrize('a', ['x y', 'x z'])\n+def test_two(tens, a):",
        )
        .replace("+2,8", "+2,10")
        .replace("-2,4 +2,8", "-2,4 +2,10"),
    }
    row["FAIL_TO_PASS"] = json.dumps(["tests/test_lib.py::test_two[x"])
    assert (await finished(remote, row, MEND)).reward == 1.0


@pytest.fixture
def docker(image, tmp_path, monkeypatch):
    """The directory of a stand-in for the command `docker`."""
    for name in ("bin", "images", "containers", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "images/eval.o_s_lib-1").symlink_to(image[0])
    program = tmp_path / "bin/docker"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={REPO} exec {sys.executable} -m tests.contract.runtime_stand_in.docker "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("STAND_IN_DOCKER", str(tmp_path))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    yield tmp_path
    for left in (tmp_path / "containers").iterdir():
        killed(json.loads(left.read_text())[0])


@pytest.mark.long
async def test_local_docker_containers_work(docker, image, tmp_path):
    flags = [
        "--docker", "--image", "eval.{instance_s}", "--repo-setup", "true", "--runtime-command", "serve",
        "--docker-flags=--memory 1g",
    ]  # fmt: skip
    async with served(tmp_path, *flags) as url, Http(url) as http:
        session = await http.open(image[1])
        both = json.dumps([json.loads(call("execute_bash", command=MEND))[0], json.loads(call("finish"))[0]])
        _, last, _ = await http.step(session, 0, both)
        assert (last["reward"], last["done"]) == (1.0, True), last
        status, body, _ = await http.send("POST", "/reset", json={"task": {**image[1], "image": "nobody/has:1"}})
        assert (
            status == 500
            and "ImageUnavailable: docker run: " in body["detail"]
            and "pull access denied" in body["detail"]
        ), body
    calls = (docker / "calls").read_text().splitlines()
    assert [line.split()[0] for line in calls].count("run") == 5 and list((docker / "containers").iterdir()) == []
    assert calls[0].endswith("--memory 1g eval.o_s_lib-1 serve")
