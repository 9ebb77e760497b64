"""The third argument of a reward: its settings, the progress of the run, counters, and slow work that it may await.

Counters are numbers that a run keeps in its checkpoints: `context.counters` for all prompts, `context.prompt_counters`
for the reward's own prompt. A reward reads the values as of its group's dispatch and records changes. When a batch has
been trained, the controller applies the changes of all groups that have ended since, in the order of dispatch. So
without staleness the values that a reward reads do not depend on which group ended first. With staleness the order is
not known in advance, which is why there are only sums, lowest and highest values. An evaluation drops the changes.

    async def mine(trajectory, task, context):
        correct = await context.equal(last_boxed(trajectory.text) or "", task.label)
        context.add("solved", correct)
        return RewardParts(float(correct), correct, {"progress": context.update / max(1, context.max_updates)})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..config import Reward
from ..errors import ConfigError, RewardModelError, unknown
from ..types import CounterUpdate, RunFacts, Trajectory
from .accept import finite_number
from .checking import answer_check


class RewardServices(Protocol):
    """Slow or unsafe work that a reward awaits.

    Implementations: `InlineServices` (this process, without limits) and pool.PooledServices (worker processes with a
    budget of CPU and a deadline). `RewardContext` describes the methods.
    """

    async def equal(self, answer: str, gold: str) -> bool:
        """See RewardContext.equal."""

    async def run_in_worker(self, function: Callable[..., Any], *args: Any) -> Any:
        """See RewardContext.run_in_worker."""

    async def model_score(self, trajectory: Trajectory) -> float:
        """See RewardContext.model_score."""


class InlineServices:
    """Services that compute in the calling process, without limits.

    They are for callers that are worker processes themselves, and for commands and tests that score a few responses.
    """

    async def equal(self, answer: str, gold: str) -> bool:
        """See RewardContext.equal."""
        return answer_check.equal(answer, gold)

    async def run_in_worker(self, function: Callable[..., Any], *args: Any) -> Any:
        """See RewardContext.run_in_worker."""
        return function(*args)

    async def model_score(self, trajectory: Trajectory) -> float:
        """See RewardContext.model_score.

        Raises:
            RewardModelError: Always: nobody has started a reward model.
        """
        raise RewardModelError("No reward model was started here: this command only scores with functions.")


INLINE_SERVICES = InlineServices()


_IN_WORDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text", dict: "a table"}


def _has_type(value: Any, wanted: type) -> bool:
    """Return True if the value of an option has its type.

    0 and 1 may stand for a truth value, a whole number for a float, and a number for text, as which a flag reads it.
    """
    if wanted is bool:
        return isinstance(value, int) and value in (0, 1)
    if wanted in (int, float, str) and isinstance(value, bool):
        return False
    if wanted is float:
        return finite_number(value) is not None
    return isinstance(value, (str, int, float) if wanted is str else wanted)


@dataclass(frozen=True, slots=True)
class RewardContext:
    """See the module's docstring.

    Attributes:
        settings: The section [reward].
        run: The progress of the run.
        options: Options of this reward.
        changes: Changes of counters that the reward has recorded.
        services: Where slow work is done.
        deadline_s: Seconds after which a call of `run_in_worker` is given up; None: those of the settings.
    """

    settings: Reward = field(default_factory=Reward)
    run: RunFacts = field(default_factory=RunFacts)
    options: Mapping[str, Any] = field(default_factory=dict)
    changes: list[CounterUpdate] = field(default_factory=list)
    services: RewardServices = INLINE_SERVICES
    deadline_s: float | None = None

    @classmethod
    def of(cls, settings: Reward, run: RunFacts | None = None) -> RewardContext:
        """Return the context of a reward that is used alone."""
        return cls(settings, run or RunFacts(), settings.options)

    def check_options(
        self, known: Iterable[str] | Mapping[str, type], owner: str, setting: str = "reward.options"
    ) -> None:
        """Refuse options that the reward does not have, and values of another type than theirs.

        Args:
            known: Names of its options; as a mapping with their types: bool, int, float, str, or object for any.
            owner: The setting that chose it, such as "reward.name = 'torl'".
            setting: The setting that has the options.

        Raises:
            ConfigError: An option is not known, or its value has another type.
        """
        known_options = set(known)
        if unknown_options := set(self.options) - known_options:
            remedy = f"These are the options of {owner}." if known_options else f"Leave it out: {owner} has none."
            raise unknown(f"{setting} key", min(unknown_options), known_options, remedy)
        if isinstance(known, Mapping):
            for name, value in self.options.items():
                if not _has_type(value, known[name]):
                    raise ConfigError(f"{setting}.{name} = {value!r} is not {_IN_WORDS[known[name]]}. Write one.")

    async def equal(self, answer: str, gold: str) -> bool:
        """Return True if both mean the same: as strings, as exact numbers, or else by computer algebra in a worker.

        A comparison that uses up reward.verify_timeout_s of CPU says unequal, since only the answer can cause that; the
        part `verify_timeout` of the result then is 1.

        Raises:
            VerifierError: The comparison failed for a reason that is not the answer, such as a starved host.
        """
        return await self.services.equal(answer, gold)

    async def run_in_worker(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return `function(*args)`, computed in a worker process. Use it for work of more than about a millisecond.

        Args:
            function: A function that can be pickled.
            args: Its arguments, which can be pickled.

        Raises:
            CpuSpent: The call used up reward.verify_timeout_s of CPU.
            VerifierError: The call missed its deadline (Reward.verify_deadline_s), or its worker died twice.
        """
        return await self.services.run_in_worker(function, *args)

    async def model_score(self, trajectory: Trajectory) -> float:
        """Return the score that the reward model (reward.model_name_or_path) gives to prompt and response.

        Raises:
            RewardModelError: The model does not answer, or was not started here.
        """
        return await self.services.model_score(trajectory)

    @property
    def update(self) -> int:
        """Number of learner updates at the dispatch of the group."""
        return self.run.update

    @property
    def max_updates(self) -> int:
        """The setting train.max_steps; 0 outside of a training run."""
        return self.run.max_updates

    @property
    def counters(self) -> Mapping[str, float]:
        """The run's counters as of the dispatch of the group."""
        return self.run.counters

    @property
    def prompt_counters(self) -> Mapping[str, float]:
        """The prompt's counters as of the dispatch of the group."""
        return self.run.prompt

    @property
    def format(self) -> str:
        """The setting reward.format."""
        return self.settings.format

    def add(self, name: str, value: float = 1.0, *, prompt: bool = False) -> None:
        """Add `value` to a counter, which begins at 0. With `prompt` it is a counter of this prompt alone."""
        self.changes.append(CounterUpdate("prompt" if prompt else "run", name, "add", float(value)))

    def lowest(self, name: str, value: float, *, prompt: bool = False) -> None:
        """Lower a counter to `value` if it is higher. The first call sets it."""
        self.changes.append(CounterUpdate("prompt" if prompt else "run", name, "lowest", float(value)))

    def highest(self, name: str, value: float, *, prompt: bool = False) -> None:
        """Raise a counter to `value` if it is lower. The first call sets it."""
        self.changes.append(CounterUpdate("prompt" if prompt else "run", name, "highest", float(value)))
