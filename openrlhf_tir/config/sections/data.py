"""The prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import field_validator

from ..setting import ALLOWED, Condition, Fault, refused, rule, setting
from .base import Option, Section, names_of

if TYPE_CHECKING:
    from ..schema import Config

ORDER_OF_PROMPTS = refused("the order of the prompts comes from it")


class Data(Section):
    """The prompts that are trained, and how they are read. A resume compares the prompts themselves."""

    ANY_COLUMNS: ClassVar[bool] = False
    """True if rows that input_key, label_key and row_schema do not fit are recognised by their columns."""

    prompt_dataset: str | list[str] = setting(
        "",
        description=(
            "JSONL or parquet file, directory of such files, or name for datasets.load_dataset. Several, separated by"
            " commas or as a list, are blended."
        ),
        short="the problems: a file, directory or hub name",
        resume=ALLOWED,
        openrlhf=True,
        names="input_files",
    )
    prompt_probs: list[float] | None = setting(
        None,
        description=(
            "How often each of several data sets is drawn from, relative to the others. Unset: all rows form one data"
            " set."
        ),
        resume=ORDER_OF_PROMPTS,
        openrlhf=True,
    )
    prompt_split: str = setting(
        "train",
        description="Split of a data set that is loaded by name.",
        resume=ALLOWED,
        openrlhf=True,
        fine_tuning=True,
    )
    input_key: str = setting("prompt", description="Column of the prompt.", resume=ALLOWED, openrlhf=True)
    label_key: str = setting(
        "label", description="Column of the label, which the reward receives.", resume=ALLOWED, openrlhf=True
    )
    row_schema: str | None = setting(
        None,
        description=(
            "Known form of the rows, in place of input_key and label_key: bfcl_multi_turn, dapo, orz, question_answer,"
            " searchr1, swegym, tooln1, toolrl, torl, verl. Unset: recognised by the columns."
        ),
    )
    input_template: str | None = setting(
        None,
        description=(
            "Text with {} in place of the input and {name} in place of the column `name`, or the name of a template:"
            " artist, otc, retool, searchr1, searchr1_pages, torl, user_assistant, zerotir."
        ),
        resume=ALLOWED,
        openrlhf=True,
    )
    apply_chat_template: bool = setting(
        False,
        description="Render the input as a chat with the tokenizer's own template.",
        resume=ALLOWED,
        openrlhf=True,
    )
    rendered: bool = setting(
        False,
        description=(
            "The prompts were rendered by a chat template already: special tokens in them are meant, and no"
            " beginning-of-text token is put before them."
        ),
        active_when=Condition(
            "without data.apply_chat_template, which renders the rows itself", lambda c: not c.data.apply_chat_template
        ),
        resume=ALLOWED,
    )
    chat_template_options: dict[str, Option] = setting(
        default_factory=dict,
        description="Arguments of the chat template besides messages and tools, e.g. enable_thinking = false.",
        active_when=Condition(
            "with data.apply_chat_template or an agent", lambda c: c.data.apply_chat_template or c.by_agent
        ),
        fine_tuning=True,
    )
    max_samples: int = setting(
        100_000_000,
        ge=1,
        description="Rows to read of each data set.",
        unit="rows",
        resume=ALLOWED,
        openrlhf=True,
        fine_tuning=True,
    )
    max_len: int = setting(
        10240,
        ge=2,
        description="Length of prompt and response together. Rows with longer prompts are dropped and counted.",
        short="tokens of prompt and response",
        unit="tokens",
        openrlhf=True,
    )
    on_bad_row: Literal["error", "skip"] = setting(
        "error",
        description=(
            "What to do with a row that cannot be read or lacks input or label: refuse the data, or leave the row out"
            " and list it."
        ),
        fine_tuning=True,
    )
    shuffle: bool = setting(True, description="Shuffle the prompts anew in each pass.", resume=ORDER_OF_PROMPTS)
    curriculum: Literal["off", "difficulty"] = setting(
        "off",
        description=(
            "Which prompt is next. off: each once per pass. difficulty: one whose group is likely to be kept by the"
            " filters, by the posterior of its pass rate."
        ),
        resume=ORDER_OF_PROMPTS,
    )

    @property
    def datasets(self) -> list[str]:
        """The data sets of data.prompt_dataset."""
        return names_of(self.prompt_dataset)

    @field_validator("prompt_probs", mode="before")
    @classmethod
    def _split_at_commas(cls, value: Any) -> Any:
        """Accept OpenRLHF's way of writing several numbers: 0.7,0.3."""
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            return value
        return [number for part in parts for number in (part.split(",") if isinstance(part, str) else [part])]


class HeldOutData(Data):
    """How the rows of eval.dataset are read: as the training rows are, or, if they have other columns, by these."""

    ANY_COLUMNS: ClassVar[bool] = True


@rule("data.prompt_probs")
def every_data_set_has_a_probability(c: Config) -> Iterator[Fault]:
    probabilities = c.data.prompt_probs
    names = c.data.datasets
    if probabilities is None or not names:
        return
    if len(probabilities) != len(names):
        yield (
            f"data.prompt_probs has {len(probabilities)} numbers ({', '.join(f'{p:g}' for p in probabilities)}),"
            f" data.prompt_dataset {len(names)} data sets ({', '.join(names) or 'none'}). Give one number for each data"
            " set."
        )
    elif not_positive := [p for p in probabilities if not p > 0]:
        yield (
            f"data.prompt_probs has {not_positive[0]:g}, and a data set that is never drawn from would be lost. Use"
            " numbers above 0, or leave the data set out."
        )


@rule("data.max_len")
def prompts_and_responses_fit(c: Config) -> Iterator[Fault]:
    if c.rollout.max_new_tokens >= c.data.max_len:
        yield (
            f"rollout.max_new_tokens = {c.rollout.max_new_tokens} leaves no room for a prompt in data.max_len ="
            f" {c.data.max_len}. Raise data.max_len."
        )
