"""The repository of one session in a container: the model's own bash, OpenHands' editor, and the patch at the end."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from env_servers.swe.grade import MAX_PATCH_BYTES, Report
from env_servers.swe.inside.workspace import DIFF
from env_servers.swe.session import ToolResult, printable

from .container import Container
from .faults import ImageUnfit, RuntimeFault
from .image_layout import ImageLayout
from .jobs import run_job

PATCH = """here=$PWD
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
cd {root} && git add -A &&
git -c core.fsmonitor=false diff {options} {base} > "$here/patch" || exit 1
size=$(wc -c < "$here/patch")
if [ "$size" -gt {most} ]; then echo "$size" > "$here/out/too_large"
else mv "$here/patch" "$here/out/patch"; fi
"""


class RemoteWork:
    """The work of one session."""

    def __init__(
        self,
        container: Container,
        base: str,
        layout: ImageLayout,
        judging: Callable[[bytes], Awaitable[Report]],
        end: Callable[[Container], None],
        count: Callable[[RuntimeFault], None],
    ) -> None:
        """Create the work of a session.

        Args:
            container: The session's container.
            base: Id of the only commit of its repository.
            layout: What its image has.
            judging: Judges a patch, and counts the faults of that itself.
            end: Stops the container.
            count: Called for each fault of a call or of the patch.
        """
        self._container = container
        self._base = base
        self._layout = layout
        self._judging = judging
        self._end = end
        self._count = count

    async def begin(self) -> None:
        """Put the model's bash into the repository, with the image's Python. Raises RuntimeFault."""
        command = f"cd {shlex.quote(self._layout.root)} && {self._layout.setup}"
        observation = await self._run(command, False, self._layout.work_s)
        if _metadata(observation).get("exit_code") != 0:
            raise ImageUnfit(f"the set-up of bash failed in the container: `{command}`: {observation['content'][:300]}")

    async def bash(self, command: str, is_input: bool, seconds: float) -> ToolResult:
        """Run a command, or send input to the running one. Raises RuntimeFault."""
        with self._counted():
            observation = await self._run(command, is_input, seconds)
        if observation.get("observation") != "run":
            return ToolResult(printable(f"ERROR:\n{observation['content']}"), refused=True)
        metadata = _metadata(observation)
        text = f"{metadata.get('prefix') or ''}{observation['content']}"
        if text and not text.endswith("\n"):
            text += "\n"
        if metadata.get("exit_code") == -1:
            return ToolResult(
                printable(
                    text + (metadata.get("suffix") or f"[The command runs on after {seconds:g} seconds. Exit code -1]")
                )
            )
        return ToolResult(
            printable(
                f"{text}[Current working directory: {metadata.get('working_dir')}]\n[Command finished with exit code"
                f" {metadata.get('exit_code')}]"
            )
        )

    async def edit(self, command: str, path: str, arguments: dict[str, Any]) -> ToolResult:
        """Run a command of the editor. Raises RuntimeFault."""
        action_arguments = {"path": path, "impl_source": "oh_aci", **arguments}
        if command != "view":
            action_arguments["command"] = command
        with self._counted():
            observation = await self._container.execute(
                "read" if command == "view" else "edit", action_arguments, self._layout.work_s
            )
        text = observation["content"]
        refused = observation.get("observation") == "error" or text.startswith("ERROR:")
        return ToolResult(printable(text), refused=refused)

    async def patch(self) -> bytes | ToolResult:
        """Return the session's patch; a ToolResult with the reason in `lost` if git makes none. Raises RuntimeFault."""
        script = PATCH.format(
            root=shlex.quote(self._layout.root), base=self._base, most=MAX_PATCH_BYTES, options=" ".join(DIFF)
        )
        with self._counted():
            done = await run_job(self._container, script, {}, self._layout.work_s)
        if "too_large" in done.out:
            return ToolResult(
                f"{done.out['too_large'][:20].decode('ascii', 'replace').strip()} bytes; at most {MAX_PATCH_BYTES}",
                lost="patch_too_large",
            )
        if done.status != 0 or "patch" not in done.out:
            return ToolResult(printable(f"git made no patch (exit {done.status}): {done.log}"), lost="patch_failed")
        return done.out["patch"]

    async def judge(self, patch: bytes) -> Report:
        """Judge a patch."""
        return await self._judging(patch)

    async def close(self) -> None:
        """Stop the container."""
        self._end(self._container)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a fault of the block."""
        try:
            yield
        except RuntimeFault as e:
            self._count(e)
            raise

    async def _run(self, command: str, is_input: bool, seconds: float) -> dict[str, Any]:
        return await self._container.execute(
            "run", {"command": command, "is_input": is_input, "blocking": False}, seconds
        )


def _metadata(observation: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of an observation; empty if it has none."""
    extras = observation.get("extras")
    metadata = extras.get("metadata") if isinstance(extras, dict) else None
    return metadata if isinstance(metadata, dict) else {}
