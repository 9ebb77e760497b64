"""A verifiers environment as its users write one, of three kinds: single-turn, with a tool, and of many turns."""

import verifiers as vf
from datasets import Dataset


def correct(completion, answer, **kwargs) -> float:
    return float(completion[-1]["content"].strip() == answer)


def broken(completion, **kwargs) -> float:
    raise RuntimeError("the judge is down")


def forgets(completion, **kwargs):
    """Returns nothing."""


def relative(completions, **kwargs) -> list[float]:
    return [0.0 for _ in completions]


async def length(completion, **kwargs) -> float:
    return float(len(completion))


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


class Higher(vf.MultiTurnEnv):
    """Guess the answer, told "higher" or "lower"."""

    async def env_response(self, messages, state, **kwargs):
        said = messages[-1]["content"].strip()
        if said == "break":
            raise vf.InfraError("no room")
        if not said.isdigit():
            return [{"role": "user", "content": "Say a number."}]
        return [{"role": "user", "content": "higher" if int(said) < int(state["answer"]) else "lower"}]

    @vf.stop
    async def guessed(self, state, **kwargs):
        return (
            bool(state["trajectory"])
            and state["trajectory"][-1]["completion"][-1]["content"].strip() == state["answer"]
        )


def load_environment(kind: str = "single", judge: str = "correct"):
    data = Dataset.from_list([{"question": f"{i}+{i}?", "answer": str(2 * i)} for i in range(1, 4)])
    functions = {"correct": correct, "broken": broken, "forgets": forgets, "relative": relative}
    rubric = vf.Rubric(funcs=[functions[judge], length], weights=[1.0, 0.0])
    if kind == "single":
        return vf.SingleTurnEnv(dataset=data, rubric=rubric, system_prompt="Answer with the number.")
    if kind == "group":
        parts = [
            vf.SingleTurnEnv(dataset=data, rubric=vf.RubricGroup([rubric, vf.Rubric(funcs=[length], weights=[0.0])]))
            for _ in range(2)
        ]
        return vf.EnvGroup(parts, env_names=["first", "second"])
    if kind == "tool":
        return vf.ToolEnv(dataset=data, rubric=rubric, tools=[add], max_turns=3)
    return Higher(dataset=data, rubric=rubric, max_turns=4)
