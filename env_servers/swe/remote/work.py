"""RemoteWork: one session's repository in a container: the model's own bash, OpenHands' editor, and the patch that is
made of it in the end."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from typing import Any

from env_servers.swe.grade import Report
from env_servers.swe.inside.workspace import DIFF
from env_servers.swe.session import MAX_PATCH_BYTES, Said, shown

from .container import Container
from .faults import ImageUnfit
from .jobs import run_job
from .place import Place

PATCH = """here=$PWD
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
cd {root} && git add -A &&
git -c core.fsmonitor=false diff {options} {base} > "$here/patch" || exit 1
size=$(wc -c < "$here/patch")
if [ "$size" -gt {most} ]; then echo "$size" > "$here/out/too_large"
else mv "$here/patch" "$here/out/patch"; fi
"""


class RemoteWork:
    def __init__(
        self,
        container: Container,
        base: str,
        place: Place,
        judging: Callable[[bytes], Awaitable[Report]],
        end: Callable[[Container], None],
    ) -> None:
        self._container = container
        self._base = base
        self._place = place
        self._judging = judging
        self._end = end

    async def begin(self) -> None:
        """The model's bash stands in the repository, with the image's Python. Raises RuntimeFault."""
        command = f"cd {shlex.quote(self._place.root)} && {self._place.setup}"
        told = await self._run(command, False, self._place.work_s)
        if _metadata(told).get("exit_code") != 0:
            raise ImageUnfit(f"the set-up of bash failed in the container: `{command}`: {told['content'][:300]}")

    async def bash(self, command: str, is_input: bool, seconds: float) -> Said:
        told = await self._run(command, is_input, seconds)
        if told.get("observation") != "run":
            return Said(shown(f"ERROR:\n{told['content']}"), refused=True)
        more = _metadata(told)
        text = f"{more.get('prefix') or ''}{told['content']}"
        if text and not text.endswith("\n"):
            text += "\n"
        if more.get("exit_code") == -1:
            return Said(
                shown(text + (more.get("suffix") or f"[The command runs on after {seconds:g} seconds. Exit code -1]"))
            )
        return Said(
            shown(
                f"{text}[Current working directory: {more.get('working_dir')}]\n[Command finished with exit code"
                f" {more.get('exit_code')}]"
            )
        )

    async def edit(self, command: str, path: str, arguments: dict[str, Any]) -> Said:
        given = {"path": path, "impl_source": "oh_aci", **arguments}
        if command != "view":
            given["command"] = command
        told = await self._container.execute("read" if command == "view" else "edit", given, self._place.work_s)
        text = told["content"]
        refused = told.get("observation") == "error" or text.startswith("ERROR:")
        return Said(shown(text), refused=refused)

    async def patch(self) -> bytes | Said:
        script = PATCH.format(
            root=shlex.quote(self._place.root), base=self._base, most=MAX_PATCH_BYTES, options=" ".join(DIFF)
        )
        done = await run_job(self._container, script, {}, self._place.work_s)
        if "too_large" in done.out:
            return Said(
                f"{done.out['too_large'][:20].decode('ascii', 'replace').strip()} bytes; at most {MAX_PATCH_BYTES}",
                lost="patch_too_large",
            )
        if done.status != 0 or "patch" not in done.out:
            return Said(shown(f"git made no patch (exit {done.status}): {done.log}"), lost="patch_failed")
        return done.out["patch"]

    async def judge(self, patch: bytes) -> Report:
        return await self._judging(patch)

    async def close(self) -> None:
        self._end(self._container)

    async def _run(self, command: str, is_input: bool, seconds: float) -> dict[str, Any]:
        return await self._container.execute(
            "run", {"command": command, "is_input": is_input, "blocking": False}, seconds
        )


def _metadata(told: dict[str, Any]) -> dict[str, Any]:
    extras = told.get("extras")
    found = extras.get("metadata") if isinstance(extras, dict) else None
    return found if isinstance(found, dict) else {}
