"""Remote: sessions in containers of a runtime API, one image for each row, and a fresh container for each patch that is
judged.

What fails by no fault of the row is tried again in another container, `retries` times, with a growing pause: a start as
a whole, a judgement as a whole. What fails in the middle of a session is not: what the model has done there is gone,
and with it the sample.

A container that is lost while tests run is told apart by trial: a patch that loses one, and another after the same
tests without it have lost none, ends its own containers (`container_ended`, no reward). Where they are lost without it
too it is the runtime's fault, or the row's; so that a bad moment of the runtime is not the patch's, the trial without
it is in between.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar

from env_servers.swe.backend import Work
from env_servers.swe.grade import MAX_PATCH_BYTES, Report
from env_servers.swe.rows import Rows
from env_servers.swe.session import Said
from env_servers.swe.suite import Outcome
from env_servers.swe.task import SweTask

from .container import Container
from .faults import NAMES, LostInTests, RuntimeFault, RuntimeUnusable
from .http import pause_s
from .judging import copies_end, falsified, judged, untouched
from .place import Place, prepared
from .work import RemoteWork

T = TypeVar("T")
WITHOUT = b""
CHECKS = 4
"""Rows that are tried without a patch at once, each in a container beside those of the sessions."""


class Containers(Protocol):
    """Where containers come from: `api.RuntimeApi`, `docker.Docker`."""

    running: int
    stops_failed: int

    async def start(self, image: str) -> Container: ...

    def stop(self, container: Container) -> None: ...

    async def close(self) -> None: ...


class Remote:
    def __init__(self, api: Containers, place: Place, *, image: str | None, retries: int, checks: int = CHECKS) -> None:
        """`image`: the name of a row's image, with {instance_id} (as the row has it), {instance_s} or {instance_1776}
        (__ written _s_ or _1776_). `checks`: rows that are tried without a patch at once; 0: none is."""
        self._api = api
        self._place = place
        self._image = image
        self._retries = retries
        self._rows = Rows(self._untouched, wait_s=0.0) if checks else None
        self._checks = asyncio.Semaphore(checks)
        self.faults: Counter[type[RuntimeFault]] = Counter()

    async def begin(self, task: SweTask) -> Work:
        image = image_of(task, self._image)
        if strange := [name for name in [*task.fail_to_pass, *task.pass_to_pass] if "::" not in name]:
            raise ValueError(
                f"FAIL_TO_PASS and PASS_TO_PASS name {strange[0]!r}, which is no test of pytest's (FILE::NAME):"
                " nothing else is run in a container."
            )
        if self._rows is not None:
            self._rows.refuse(task)

        async def start() -> Work:
            container = await self._api.start(image)
            work = RemoteWork(
                container,
                await self._kept(container, prepared(container, task, self._place)),
                self._place,
                judge,
                self._api.stop,
            )
            await self._kept(container, work.begin())
            return _Counted(work, self._count)

        async def judge(patch: bytes) -> Report:
            await judgeable()
            if not patch.strip():
                return Report(False, "patch_empty")
            if len(patch) > MAX_PATCH_BYTES:
                return Report(False, "patch_too_large", detail=f"{len(patch)} bytes; at most {MAX_PATCH_BYTES}")
            return await self._verdict(task, image, patch)

        work = await self._again(start)
        try:  # beside the session: its image is known to start, and is where containers start now
            judgeable = await self._rows.at_start(task, task) if self._rows is not None else _any_row
        except BaseException:
            await work.close()
            raise
        return work

    async def _untouched(self, task: SweTask) -> Outcome:
        """The row's tests without a patch, in a container of its image. One that is lost meanwhile is tried again."""

        async def run() -> Outcome:
            async with self._fresh(image_of(task, self._image)) as container:
                await prepared(container, task, self._place)
                return await untouched(container, task, self._place)

        async with self._checks:
            return await self._once_more(run)

    async def _verdict(self, task: SweTask, image: str, patch: bytes) -> Report:
        """Judge a patch; what passes has to fail falsified tests in a container of their own."""
        report, outcome = await self._true_verdict(task, image, patch)
        if not report.resolved:
            return report
        why = await self._false_verdict(task, image, patch, outcome)
        return report if why is None else dataclasses.replace(report, resolved=False, why=why)

    async def _true_verdict(self, task: SweTask, image: str, patch: bytes) -> tuple[Report, Outcome]:
        """Run the true tests; a container that is lost is tried without the patch, and with it again."""
        with suppress(LostInTests):
            return await self._again(lambda: self._judge(task, image, patch))
        await asyncio.sleep(pause_s(1))
        await self._again(lambda: self._judge(task, image, WITHOUT))
        try:
            return await self._again(lambda: self._judge(task, image, patch))
        except LostInTests as e:
            return Report(False, "container_ended", detail=str(e)), Outcome({}, "no_report")

    async def _false_verdict(self, task: SweTask, image: str, patch: bytes, true: Outcome) -> str | None:
        """Run falsified copies of the tests. Return why the true ones are not to be believed; None where they are.

        Copies that come to no end twice are run without the patch. Where they end there, and with the patch do not
        again, the patch is at fault.

        Raises:
            RuntimeFault: It could not be told. LostInTests where the copies come to no end without the patch either.
        """
        with suppress(LostInTests):
            return await self._once_more(lambda: self._falsified(task, image, patch, true))
        await asyncio.sleep(pause_s(1))
        await self._again(lambda: self._copies_end(task, image))
        try:
            return await self._again(lambda: self._falsified(task, image, patch, true))
        except LostInTests as e:
            return e.ended

    async def _copies_end(self, task: SweTask, image: str) -> None:
        async with self._fresh(image) as container:
            await prepared(container, task, self._place)
            await copies_end(container, task, self._place)

    async def _judge(self, task: SweTask, image: str, patch: bytes) -> tuple[Report, Outcome]:
        async with self._fresh(image) as container:
            await prepared(container, task, self._place)
            return await judged(container, task, self._place, patch)

    async def _falsified(self, task: SweTask, image: str, patch: bytes, true: Outcome) -> str | None:
        async with self._fresh(image) as container:
            await prepared(container, task, self._place)
            return await falsified(container, task, self._place, patch, true)

    async def _once_more(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run in a container, and in another one where that is lost while tests run. Raises RuntimeFault."""
        with suppress(LostInTests):
            return await self._again(run)
        await asyncio.sleep(pause_s(1))
        return await self._again(run)

    @asynccontextmanager
    async def _fresh(self, image: str) -> AsyncIterator[Container]:
        container = await self._api.start(image)
        try:
            yield container
        finally:
            self._api.stop(container)

    async def _kept(self, container: Container, work: Awaitable[T]) -> T:
        """The container outlives `work` only if that succeeds."""
        try:
            return await work
        except BaseException:
            self._api.stop(container)
            raise

    async def _again(self, whole: Callable[[], Awaitable[T]]) -> T:
        failures = 0
        while True:
            try:
                return await whole()
            except RuntimeFault as e:
                self._count(e)
                failures += 1
                if failures > self._retries or isinstance(e, RuntimeUnusable | LostInTests):
                    raise
            await asyncio.sleep(pause_s(failures))

    def _count(self, fault: RuntimeFault) -> None:
        self.faults[type(fault)] += 1

    async def close(self) -> None:
        """When every container has been stopped."""
        if self._rows is not None:
            await self._rows.close()
        await self._api.close()

    @property
    def gauges(self) -> Mapping[str, Callable[[], float]]:
        found: dict[str, Callable[[], float]] = {
            "containers": lambda: self._api.running,
            "containers_not_stopped": lambda: self._api.stops_failed,
        }
        return found | {f"runtime_faults_{name}": lambda kind=kind: self.faults[kind] for kind, name in NAMES.items()}


async def _any_row() -> None:
    """Where rows are not tried."""


class _Counted:
    """A session's work, whose faults are counted."""

    def __init__(self, work: RemoteWork, count: Callable[[RuntimeFault], None]) -> None:
        self._work = work
        self._count = count

    async def bash(self, command: str, is_input: bool, seconds: float) -> Said:
        return await self._noted(self._work.bash(command, is_input, seconds))

    async def edit(self, command: str, path: str, arguments: dict[str, Any]) -> Said:
        return await self._noted(self._work.edit(command, path, arguments))

    async def patch(self) -> bytes | Said:
        return await self._noted(self._work.patch())

    async def judge(self, patch: bytes) -> Report:
        return await self._work.judge(patch)  # counted where it is tried again

    async def close(self) -> None:
        await self._work.close()

    async def _noted(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except RuntimeFault as e:
            self._count(e)
            raise


def image_of(task: SweTask, template: str | None) -> str:
    """Raises ValueError, with a remedy, where nothing says which it is."""
    if not task.is_row:
        raise ValueError(
            f"repo = {task.repo!r}: a server with --runtime-api takes rows with a base_commit and tests. "
            "Start one without for bundled repositories, and for those that a row brings."
        )
    if task.image:
        return task.image
    if template is None or not task.instance_id:
        raise ValueError(
            f"the row of {task.repo} names no image, and --image or its instance_id is missing."
            " Add the row's field `image`, or both of these."
        )
    name = task.instance_id.lower()
    return template.format(
        instance_id=task.instance_id, instance_s=name.replace("__", "_s_"), instance_1776=name.replace("__", "_1776_")
    )
