"""Every error this project raises on purpose. All are picklable: they cross Ray.

    TirError
    |- ConfigError            what the user wrote cannot work; raised before anything heavy is loaded
    |- ColdStartError         the toy base model missed its gates; says by how much
    |- DataError              a row or column of the data is unusable; names file and line
    |- InfraError             a machine, server, process or user code failed (MethodError); never the model's fault,
    |  |                      never a reward
    |  |- EnvError            an environment server failed for good (after retries)
    |  |  |- EnvLost          no server is up, or the one that held the session is down or has forgotten it: all its
    |  |  |                   sessions are hit
    |  |  |- TaskRefused      an environment server can make no episode of the row
    |  |- EnvTimeout          the server or the network missed its deadline
    |  |- EnvFull             the environment had no room for five minutes, or for env.step_timeout_s if that is longer
    |  |- DeadlineMissed      another process did not answer in time; names the setting
    |  |- EngineError         the rollout engine failed
    |  |  |- EngineGone       its process died, or did not answer in time
    |  |  |- VersionGone      no engine is left that has the weights which are evaluated
    |  |- LearnerDied         a learner rank died; all ranks start again from the last checkpoint
    |  |- PayloadLost         the object store lost a sampled group, with the node that held it
    |  |- QueueFull           a rollout actor has no room; says when to try again
    |  |- RequestRefused      the engine is well and has no answer to this request (too long, beyond the vocabulary)
    |  |- AgentLost           an agent file's `execute` was not heard of for too long
    |  |- TokenDrift          a trajectory's tokens do not say what its text says
    |  |- EvaluationFailed    too many samples of an evaluation were lost; says how many
    |  |- Unavailable         what is needed does not answer or has no room now; waiting may mend it
    |  |  |- ClusterFull      the cluster has no resources free for an actor or a rank now
    |  |- VerifierError       the answer checker died or missed its deadline
    |  |- RewardModelError    the reward model died, failed or missed its deadline
    |  |- WeightsUnverified   a weight push could not be proved to have landed
    |  |  |- WeightsMisloaded  the model does not hold what was sent; the engine stands still, a full push may mend it
    |  |  |- DeltaRefused     a node cannot continue from the push before; the engine is as it was, a full push mends it
    |  |- MethodError          user code, or a function of ours in its place, failed on one sample or group; the whole
    |  |  |                    group is failed
    |  |  |- RewardError       a reward raised, or returned no number
    |  |  |- FilterError       a filter raised, or returned no verdict
    |  |  |- TurnError         a turn protocol raised, or answered with something else than a turn
    |  |  |- AgentError        an agent file raised, or returned what cannot be trained
    |  |  |- EnvironmentCodeError  an environment's class raised, blocked its server, or returned what is no reply
    |  |- CheckpointFailed    a checkpoint could not be written; the older ones stay, training may go on
    |- CheckpointDamaged      what a resume needs is not on disk as it was written; names the file and what to resume
    |                         from instead
    |- PipelineError
       |- ConservationError   a slot or a prompt was lost or counted twice
       |- MethodBroken        a method's function failed on group after group; says where, and the last error
       |- StallError          nothing progressed for a long time (names the blocked edge), or only failures came
       |- BackgroundDied      a background task failed again and again and was given up; names it
    |- ReproductionFailed     a command of a miniature failed, or left no figures; names it and its log. Never a verdict
    |- Unproductive           no group of several batches could be trained; says why and shows one
    |- Diverged               the gradient or the weights are not finite
    |- Stopped                a signal or the time limit ended the run in good order; names the checkpoint to resume
                              from

Bad *answers* of the model are data, not errors: see `protocol.Outcome`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake that an error reports.

    Attributes:
        message: Fact, value and remedy, for people. Its wording may change.
        code: What kind of mistake it is, for tests and other programs (docs/troubleshooting.md has a list).
        setting: The setting to look at, such as "actor.l2"; None if no setting is concerned.
    """

    message: str
    code: str
    setting: str | None = None


class TirError(Exception):
    """Root. `str(e)` gives fact, value and remedy; `code` and `setting` say the same to a program.

    An error may report several mistakes: `problems` has all of them, `code` and `setting` are the first one's.
    """

    reason = "error"
    """The code of errors of this class that have none of their own."""

    def __init__(
        self, *args: object, code: str | None = None, setting: str | None = None, problems: Sequence[Problem] = ()
    ) -> None:
        """Create an error.

        Args:
            args: The message, and what a subclass adds to it.
            code: What kind of mistake it is; by default that of the class.
            setting: The setting to look at.
            problems: The mistakes, if there are several; then `code` and `setting` are not given.
        """
        super().__init__(*args)
        self.given_code = code
        self.given_setting = setting
        self.given_problems = tuple(problems)

    def reworded(self, change: Callable[[str], str]) -> Self:
        """Return an error of the same class and codes, with `change` applied to its messages and settings."""
        return type(self)(
            change(str(self)),
            code=self.given_code,
            setting=self.given_setting and change(self.given_setting),
            problems=[
                replace(problem, message=change(problem.message), setting=problem.setting and change(problem.setting))
                for problem in self.given_problems
            ],
        )

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The mistakes that this error reports; at least one."""
        return self.given_problems or (Problem(str(self), self.given_code or self.reason, self.given_setting),)

    @property
    def code(self) -> str:
        """What kind of mistake it is."""
        return self.problems[0].code

    @property
    def setting(self) -> str | None:
        """The setting to look at; None if no setting is concerned."""
        return self.problems[0].setting


class ConfigError(TirError):
    """The configuration cannot work."""

    reason = "config"


class ColdStartError(TirError):
    """Supervised fine-tuning did not give a base model from which reinforcement learning can start."""

    reason = "cold_start"


class ReproductionFailed(TirError):
    """A command of a miniature (`reproduce`) failed or left no figures: no verdict can be given."""

    reason = "reproduction_failed"


class DataError(TirError):
    """The data cannot be used."""

    reason = "data"


class InfraError(TirError):
    """Infrastructure failed, or user code on one sample or group (`MethodError`). The model is not at fault.

    `reason` is the short name that is counted: `env_error`, `timeout`, ...

    Attributes:
        out_of_time: True if a call was ended because it had used up its time, or was not over in time. It travels
            between processes, which the cause of an exception does not.
    """

    reason = "infra"
    out_of_time: bool = False


class EnvError(InfraError):
    reason = "env_error"


class EnvLost(EnvError):
    reason = "env_lost"


class TaskRefused(EnvError):
    reason = "task_refused"


class EnvTimeout(InfraError):
    reason = "timeout"


class EnvFull(InfraError):
    reason = "capacity"


class DeadlineMissed(InfraError):
    reason = "deadline_missed"


class EngineError(InfraError):
    reason = "engine_error"


class EngineGone(EngineError):
    reason = "engine_gone"


class VersionGone(EngineError):
    reason = "version_gone"


class LearnerDied(InfraError):
    reason = "learner_died"


class PayloadLost(InfraError):
    reason = "payload_lost"


class QueueFull(InfraError):
    reason = "queue_full"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.args[0]


class RequestRefused(InfraError):
    reason = "request_refused"


class AgentLost(InfraError):
    reason = "agent_lost"


class TokenDrift(InfraError):
    reason = "token_drift"


class EvaluationFailed(InfraError):
    """`failed` of `samples` are missing: the figures would be of other problems."""

    reason = "evaluation_failed"

    def __init__(self, message: str, failed: int, samples: int) -> None:
        super().__init__(message, failed, samples)
        self.failed, self.samples = failed, samples

    def __str__(self) -> str:
        return self.args[0]


class Unavailable(InfraError):
    reason = "unavailable"


class ClusterFull(Unavailable):
    reason = "cluster_full"


class VerifierError(InfraError):
    reason = "verifier_error"


class RewardModelError(InfraError):
    reason = "reward_model"


class WeightsUnverified(InfraError):
    reason = "weights_unverified"


class WeightsMisloaded(WeightsUnverified):
    """An engine's model does not hold the weights that were sent to it, by the read-back after loading.

    The engine samples nothing until it is pushed to again.
    """


class DeltaRefused(WeightsUnverified):
    reason = "delta_refused"


class MethodError(InfraError):
    """A reward, filter, protocol, agent file or environment class failed, which fails the whole group in training.

    `str(e)` names file, line and what was expected.

    Attributes:
        user_traceback: The traceback of the user's own code, from its first frame on; empty where nothing was raised.
            (`traceback` would be overwritten by pebble, which sets it on every error that leaves a worker.)
    """

    reason = "method_error"
    user_traceback: str = ""


class RewardError(MethodError):
    reason = "reward_error"


class FilterError(MethodError):
    reason = "filter_error"


class TurnError(MethodError):
    reason = "protocol_error"


class AgentError(MethodError):
    reason = "agent_error"


class EnvironmentCodeError(MethodError):
    """The code of an environment is wrong. Its server is up: another try would end the same way."""

    reason = "environment_code_error"


SUSPENDED = "suspended"
"""Why a group failed that ran while its process was suspended, and lost trajectories or calls to deadlines that went on
meanwhile. It is issued again, at no cost in attempts."""
USER_CODE_REASONS = frozenset(
    {RewardError.reason, FilterError.reason, TurnError.reason, AgentError.reason, EnvironmentCodeError.reason}
)
"""Reasons of `MethodError`s. The fault lies in a reward, filter, protocol, agent file or environment class: another try
would end the same way, and the user must know."""


class CheckpointFailed(InfraError, OSError):
    """The disk refused a checkpoint, or has too little room for one. Nothing of it is left; the checkpoints before it
    are whole.

    An OSError too: whoever can go on when a disk refuses can go on here.
    """

    reason = "checkpoint_failed"


class CheckpointDamaged(TirError):
    """A checkpoint, or the ledger that belongs to it, differs from what was committed. Nothing of it was loaded."""

    reason = "checkpoint_damaged"


class PipelineError(TirError):
    """The pipeline itself is broken."""

    reason = "pipeline"


class ConservationError(PipelineError):
    """A slot or a prompt was lost or counted twice: dispatched groups are not the sum of the states in GroupState."""

    reason = "conservation"


class MethodBroken(PipelineError):
    """Group after group failed by the method's own code."""

    reason = "user_code"


class StallError(PipelineError):
    """No progress within the stall deadline, or more groups than a batch failed in a row: something outside is down."""

    reason = "stalled"


class BackgroundDied(PipelineError):
    """A background task could not be kept running."""

    reason = "background_died"


class Unproductive(TirError):
    """Everything that was rolled is dropped or fails. Starting again cannot mend it."""

    reason = "unproductive"


class Diverged(TirError):
    """Training is broken numerically. Starting again cannot mend it."""

    reason = "diverged"


class Stopped(TirError):
    """The run ended because it was asked to, and can be resumed. Not a failure, and nothing to restart by oneself."""

    reason = "stopped"


def unknown(kind: str, value: object, known: Iterable[str], remedy: str) -> ConfigError:
    """The one phrasing for a name that is not in a registry, which may be empty."""
    names = ", ".join(sorted(known))
    return ConfigError(f"Unknown {kind} {value!r}. {f'Known: {names}. ' if names else ''}{remedy}", code="unknown_name")
