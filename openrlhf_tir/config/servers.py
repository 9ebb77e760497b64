"""The environment servers that a run can start: everything that the trainer knows of one before it runs.

    SERVERS["search"]          -> ServerInfo(module="env_servers.search", takes_workers=True, ...)
    environment.server_info    -> the same for an environment of the run, and OWN for a user's class

A new server is a package in env_servers/ and an entry of SERVERS; nothing else lists the servers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ..protocol import PYTHON_TOOL

SECRET = "tir-secret-5f1c"
"""A text that the check of an environment gives to one session, and that another session must never show."""


@dataclass(frozen=True, slots=True)
class Actions:
    """What to say to an environment so that it works, takes long, fails, or would tell another session's state.

    `check-env` and the rehearsal of a run say it. None: the environment is not known to have such an action, and what
    needs it is skipped.
    """

    valid: str = "hello"
    task: dict[str, Any] = field(default_factory=dict)
    slow: str | None = None
    """Takes at least 3 s in a session of `slow_task`."""
    slow_task: dict[str, Any] = field(default_factory=dict)
    failing: str | None = None
    """Outcome model_error or env_error."""
    ending: str | None = None
    """Ends the episode in a session of `ending_task`."""
    ending_task: dict[str, Any] = field(default_factory=dict)
    write: str | None = None
    """Leaves SECRET wherever a session can leave something."""
    read: str | None = None
    """Shows SECRET if it can be found."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the trainer knows of an environment server before it runs.

    Attributes:
        module: The server is started as `python -m MODULE`, and `MODULE.__main__` has `parser()`. "" if the run cannot
            start it.
        takes_workers: True if it is given env.workers. The others answer at once, and have a large default.
        takes_code_timeout: True if it is given env.code_timeout_s.
        needs_options: True if it cannot be started without env.server_options.
        builds_index: True if its first start may take long, since it builds an index: it has timeouts.start_s for it.
        runs_code: True if it executes what a model writes, so that the machine must be able to isolate it.
        needs_meta: The keys of a row's meta from which it plays an episode.
        rewards_messages: True if it gives a reward above 0 only when the model has sent its user a message.
        tools: Schemas of its tools for a chat template, as its /schema will declare them.
        actions: What a check says to it.
    """

    module: str = ""
    takes_workers: bool = False
    takes_code_timeout: bool = False
    needs_options: bool = False
    builds_index: bool = False
    runs_code: bool = False
    needs_meta: tuple[str, ...] = ()
    rewards_messages: bool = False
    tools: tuple[dict[str, Any], ...] = ()
    actions: Actions = Actions()


_WRITE = f"""
import builtins, sys
leak = {SECRET!r}
builtins.leak = sys.leak = leak
for place in ("/tmp/tir_leak", "tir_leak", "/dev/shm/tir_leak"):
    try: open(place, "w").write(leak)
    except OSError: pass
"""
_READ = """
import builtins, sys
print(globals().get("leak"), getattr(sys, "leak", None))
for place in ("/tmp/tir_leak", "tir_leak", "/dev/shm/tir_leak"):
    try: print(open(place).read())
    except OSError: pass
"""
_MAZE = {"puzzle": "labyrinth", "level": 20, "seed": 0}
_CODE = {"puzzle": "mastermind", "level": 0, "seed": 0}
_FILE_TASK = {"domains": ["files"], "gold": [[]]}
_REPO_TASK = {"repo": "roman"}
_CLASS_TASK = {
    "id": "check_0",
    "functions_told": True,
    "involved_classes": ["GorillaFileSystem"],
    "label": [[]],
    "initial_config": {
        "GorillaFileSystem": {
            "root": {"home": {"type": "directory", "contents": {"leak": {"type": "file", "content": ""}}}}
        }
    },
}


def _call(name: str, **arguments: str) -> str:
    return json.dumps([{"name": name, "arguments": arguments}])


SERVERS: dict[str, ServerInfo] = {
    "python_tir": ServerInfo(
        module="env_servers.python_tir",
        takes_workers=True,
        takes_code_timeout=True,
        runs_code=True,
        tools=(PYTHON_TOOL,),
        actions=Actions(
            valid="print(6 * 7)", slow="import time; time.sleep(3)", failing="1/0", write=_WRITE, read=_READ
        ),
    ),
    "search": ServerInfo(
        module="env_servers.search",
        takes_workers=True,
        needs_options=True,
        builds_index=True,
        actions=Actions(valid="a test"),
    ),
    "math": ServerInfo(module="env_servers.math", takes_workers=True),
    "functions": ServerInfo(
        module="env_servers.functions",
        needs_meta=("domains", "gold"),
        rewards_messages=True,
        actions=Actions(
            valid=_call("list_directory"),
            task=_FILE_TASK,
            slow_task=_FILE_TASK,
            failing=_call("fly"),
            ending=json.dumps({"message": "Done."}),
            ending_task=_FILE_TASK,
            write=_call("write_file", path="/home/leak", text=SECRET),
            read=_call("read_file", path="/home/leak"),
        ),
    ),
    "swe": ServerInfo(
        module="env_servers.swe",
        takes_workers=True,
        runs_code=True,
        needs_meta=("repo",),
        actions=Actions(
            valid=_call("execute_bash", command="cat README.md"),
            task=_REPO_TASK,
            slow=_call("execute_bash", command="sleep 3"),
            slow_task=_REPO_TASK,
            failing=_call("fly"),
            ending=_call("finish"),
            ending_task=_REPO_TASK,
            write=_call(
                "execute_bash",
                command=f"echo {SECRET} | tee /tmp/leak /tmp/roman/leak > /dev/shm/leak; export leak={SECRET}",
            ),
            read=_call("execute_bash", command="cat /tmp/leak /tmp/roman/leak /dev/shm/leak; echo $leak; env"),
        ),
    ),
    "puzzles": ServerInfo(
        module="env_servers.puzzles",
        takes_workers=True,
        actions=Actions(  # a wall or a step, and more of them than any check takes
            valid="north", task=_MAZE, slow_task=_MAZE, failing="up", ending="22", ending_task=_CODE
        ),
    ),
    "echo": ServerInfo(
        module="env_servers.echo",
        actions=Actions(slow="hello", slow_task={"delay_s": 3.0}, failing="fail", write=SECRET, read="what was said?"),
    ),
    "mcp": ServerInfo(module="env_servers.adapters.mcp", needs_options=True),
    "openenv": ServerInfo(module="env_servers.adapters.openenv", needs_options=True),
    "verl_tool": ServerInfo(module="env_servers.adapters.verl_tool", needs_options=True),
    "gem": ServerInfo(module="env_servers.adapters.gem"),
    "bfcl": ServerInfo(
        module="env_servers.adapters.bfcl",
        takes_workers=True,
        rewards_messages=True,
        actions=Actions(
            valid=_call("pwd"),
            task=_CLASS_TASK,
            slow_task=_CLASS_TASK,
            failing=_call("fly"),
            ending=json.dumps({"message": "Done."}),
            ending_task=_CLASS_TASK,
            write=_call("echo", content=SECRET, file_name="leak"),
            read=_call("cat", file_name="leak"),
        ),
    ),
    "tau": ServerInfo(module="env_servers.adapters.tau", needs_options=True),
}
"""Name of an environment, which its server's /health gives too -> its server."""
OWN = ServerInfo(module="env_servers.own")
"""The server of a user's class, env.file."""
OTHER = ServerInfo()
"""Somebody else's server, which runs at a URL."""
