"""Actions: what to say to an environment so that it works, takes long, fails, or would tell another session's state."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

SECRET = "tir-secret-5f1c"
"""What one session is told; another one must never show it."""


@dataclass(frozen=True, slots=True)
class Actions:
    """None: the environment is not known to have such an action, and what needs it is skipped."""

    valid: str
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
_MAZE, _CODE = {"puzzle": "labyrinth", "level": 20, "seed": 0}, {"puzzle": "mastermind", "level": 0, "seed": 0}
_FILE_TASK = {"domains": ["files"], "gold": [[]]}
_REPO_TASK = {"repo": "roman"}
_CLASS_TASK = {
    **{"id": "check_0", "functions_told": True, "involved_classes": ["GorillaFileSystem"], "label": [[]]},
    "initial_config": {
        "GorillaFileSystem": {
            "root": {"home": {"type": "directory", "contents": {"leak": {"type": "file", "content": ""}}}}
        }
    },
}


def _call(name: str, **arguments: str) -> str:
    return json.dumps([{"name": name, "arguments": arguments}])


_KNOWN = {
    "echo": Actions(
        valid="hello", slow="hello", slow_task={"delay_s": 3.0}, failing="fail", write=SECRET, read="what was said?"
    ),
    "python_tir": Actions(
        valid="print(6 * 7)", slow="import time; time.sleep(3)", failing="1/0", write=_WRITE, read=_READ
    ),
    "functions": Actions(
        valid=_call("list_directory"),
        task=_FILE_TASK,
        slow_task=_FILE_TASK,
        failing=_call("fly"),
        ending=json.dumps({"message": "Done."}),
        ending_task=_FILE_TASK,
        write=_call("write_file", path="/home/leak", text=SECRET),
        read=_call("read_file", path="/home/leak"),
    ),
    "bfcl": Actions(
        valid=_call("pwd"),
        task=_CLASS_TASK,
        slow_task=_CLASS_TASK,
        failing=_call("fly"),
        ending=json.dumps({"message": "Done."}),
        ending_task=_CLASS_TASK,
        write=_call("echo", content=SECRET, file_name="leak"),
        read=_call("cat", file_name="leak"),
    ),
    "swe": Actions(
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
    "puzzles": Actions(  # a wall or a step, and more of them than anything here takes
        valid="north", task=_MAZE, slow_task=_MAZE, failing="up", ending="22", ending_task=_CODE
    ),
    "search": Actions(valid="a test"),
}


def actions_for(env: str) -> Actions:
    """Known actions of `env`; for another environment a plain text as the valid one."""
    return _KNOWN.get(env, Actions(valid="hello"))
