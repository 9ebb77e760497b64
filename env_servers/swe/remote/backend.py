"""Sessions in containers of a runtime API, with one image for each row, and a fresh container for each patch that is
judged.

What fails by no fault of the row is tried again in another container, `retries` times, with a growing pause: a start as
a whole, a judgement as a whole. A failure in the middle of a session is not tried again: the model's work in it is
lost, and with it the sample.

If a container is lost while tests run, a trial finds out why: a patch that loses one container, and another one after
the same tests without the patch have lost none, ends its own containers (`container_ended`, no reward). If containers
are lost without the patch too, the runtime or the row is at fault. The trial without the patch comes in between so that
a bad moment of the runtime is not blamed on the patch.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from env_servers.swe.backend import Work
from env_servers.swe.grade import Report, refusal_of
from env_servers.swe.rows import Rows
from env_servers.swe.suite import Outcome
from env_servers.swe.task import SweTask

from .container import Containers
from .faults import NAMES, LostInTests, RuntimeFault, RuntimeUnusable
from .http import pause_s
from .image_layout import ImageLayout, prepare_repository
from .judging import copies_end, falsified, judged, untouched
from .work import RemoteWork

T = TypeVar("T")
WITHOUT = b""
"""The empty patch."""
CHECKS = 4
"""Rows that are tried without a patch at once, each in a container beside those of the sessions."""


class Remote:
    """Sessions in containers."""

    def __init__(
        self, api: Containers, layout: ImageLayout, *, image: str | None, retries: int, checks: int = CHECKS
    ) -> None:
        """Create the backend.

        Args:
            api: Starts and stops containers.
            layout: What the images have.
            image: Name of a row's image, with {instance_id} (as the row has it), {instance_s} or {instance_1776} (__
                written _s_ or _1776_).
            retries: Tries after the first one.
            checks: Rows that are tried without a patch at once; 0: none is.
        """
        self._api = api
        self._layout = layout
        self._image = image
        self._retries = retries
        self._rows = Rows(self._untouched, wait_s=0.0) if checks else None
        self._checks = asyncio.Semaphore(checks)
        self.faults: Counter[type[RuntimeFault]] = Counter()

    async def begin(self, task: SweTask) -> Work:
        """Start the session of a task. Raises ValueError, RuntimeFault."""
        image = image_of(task, self._image)
        if not_node_ids := [name for name in [*task.fail_to_pass, *task.pass_to_pass] if "::" not in name]:
            raise ValueError(
                f"FAIL_TO_PASS and PASS_TO_PASS name {not_node_ids[0]!r}, which is not a test of pytest's (FILE::NAME):"
                " nothing else is run in a container."
            )
        if self._rows is not None:
            self._rows.refuse(task)

        async def start() -> Work:
            container = await self._api.start(image)
            try:
                base = await prepare_repository(container, task, self._layout)
                work = RemoteWork(container, base, self._layout, judge, self._api.stop, self._count)
                await work.begin()
            except BaseException:
                self._api.stop(container)
                raise
            return work

        async def judge(patch: bytes) -> Report:
            await judgeable()
            if (refusal := refusal_of(patch)) is not None:
                return refusal
            return await self._verdict(task, patch)

        work = await self._with_retries(start)
        try:  # after the session's start, which shows that the image starts
            judgeable = await self._rows.at_start(task, task) if self._rows is not None else _any_row
        except BaseException:
            await work.close()
            raise
        return work

    async def _untouched(self, task: SweTask) -> Outcome:
        """Run the row's tests without a patch in a container of its image. If the container is lost, try another
        one."""
        async with self._checks:
            return await self._once_more(partial(self._in_fresh, untouched, task))

    async def _verdict(self, task: SweTask, patch: bytes) -> Report:
        """Judge a patch. One that passes must also fail falsified tests in a container of their own."""
        report, outcome = await self._true_verdict(task, patch)
        if not report.resolved:
            return report
        reason = await self._false_verdict(task, patch, outcome)
        return report if reason is None else dataclasses.replace(report, resolved=False, reason=reason)

    async def _true_verdict(self, task: SweTask, patch: bytes) -> tuple[Report, Outcome]:
        """Run the true tests. If the container is lost, try without the patch, and then with it again."""
        judge = partial(self._in_fresh, judged, task, patch)
        with suppress(LostInTests):
            return await self._with_retries(judge)
        await asyncio.sleep(pause_s(1))
        await self._with_retries(partial(self._in_fresh, judged, task, WITHOUT))
        try:
            return await self._with_retries(judge)
        except LostInTests as e:
            return Report(False, "container_ended", detail=str(e)), Outcome({}, "no_report")

    async def _false_verdict(self, task: SweTask, patch: bytes, true: Outcome) -> str | None:
        """Run falsified copies of the tests. Return why the true tests cannot be believed; None if they can.

        Copies that do not end twice are run without the patch. If they end there, and again do not with the patch, the
        patch is at fault.

        Raises:
            RuntimeFault: It could not be found out. LostInTests if the copies do not end without the patch either.
        """
        try_copies = partial(self._in_fresh, falsified, task, patch, true)
        with suppress(LostInTests):
            return await self._once_more(try_copies)
        await asyncio.sleep(pause_s(1))
        await self._with_retries(partial(self._in_fresh, copies_end, task))
        try:
            return await self._with_retries(try_copies)
        except LostInTests as e:
            return e.ended

    async def _once_more(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run in a container, and in another one if that is lost while tests run. Raises RuntimeFault."""
        with suppress(LostInTests):
            return await self._with_retries(run)
        await asyncio.sleep(pause_s(1))
        return await self._with_retries(run)

    async def _in_fresh(self, work: Callable[..., Awaitable[T]], task: SweTask, *arguments: Any) -> T:
        """Return the result of `work(container, task, layout, *arguments)` in a container of its own.

        The container has the task's repository, and is stopped afterwards.
        """
        container = await self._api.start(image_of(task, self._image))
        try:
            await prepare_repository(container, task, self._layout)
            return await work(container, task, self._layout, *arguments)
        finally:
            self._api.stop(container)

    async def _with_retries(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of some work, tried again after faults that another try may avoid."""
        failures = 0
        while True:
            try:
                return await work()
            except RuntimeFault as e:
                self._count(e)
                failures += 1
                if failures > self._retries or isinstance(e, RuntimeUnusable | LostInTests):
                    raise
            await asyncio.sleep(pause_s(failures))

    def _count(self, fault: RuntimeFault) -> None:
        self.faults[type(fault)] += 1

    async def close(self) -> None:
        """Cancel the checks and wait until every container is stopped."""
        if self._rows is not None:
            await self._rows.close()
        await self._api.close()

    @property
    def gauges(self) -> Mapping[str, Callable[[], float]]:
        """Functions that /metrics reads, by metric name."""
        gauges: dict[str, Callable[[], float]] = {
            "containers": lambda: self._api.running,
            "containers_not_stopped": lambda: self._api.stops_failed,
        }
        return gauges | {f"runtime_faults_{name}": lambda kind=kind: self.faults[kind] for kind, name in NAMES.items()}


async def _any_row() -> None:
    """Stand in for the check of a row if rows are not checked."""


def image_of(task: SweTask, template: str | None) -> str:
    """Return the name of a row's image. Raises ValueError, with a remedy, if nothing says which it is."""
    if not task.is_row:
        raise ValueError(
            f"repo = {task.repo!r}: a server with --runtime-api takes rows with a base_commit and tests. "
            "Start one without for bundled repositories, and for those that a row brings."
        )
    if task.image:
        return _checked_image(task.image)
    if template is None or not task.instance_id:
        raise ValueError(
            f"the row of {task.repo} names no image, and --image or its instance_id is missing."
            " Add the row's field `image`, or both of these."
        )
    name = task.instance_id.lower()
    return _checked_image(
        template.format(
            instance_id=task.instance_id,
            instance_s=name.replace("__", "_s_"),
            instance_1776=name.replace("__", "_1776_"),
        )
    )


def _checked_image(name: str) -> str:
    """Return the name of an image. Raises ValueError for one that the command `docker` would take for a flag."""
    if name.startswith("-"):
        raise ValueError(f"image = {name!r} is not the name of an image, which begins with a letter or a digit.")
    return name
