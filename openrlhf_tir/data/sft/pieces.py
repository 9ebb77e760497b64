"""Turn a row, by its columns, into chains of pieces.

    messages, tools?          a chat; `tools` are the schemas for the template, a list or JSON text (ReTool's SFT rows)
    prompt, segments          a kept trajectory: [{"source": "model" or "env", "text", "end"}]; the author decides the
                              mask (openrlhf-tir distill)
    prompt, response          two texts, the second of which is learned; TRL calls it completion. In a chat both are
                              messages
    instruction, input, output
                              a system message, a user's message and what is learned (ToolRL's SFT rows)
    text                      one text, all of which is learned

sft.input_key and sft.output_key name other columns for the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...config.paths import shorten
from ...config.sections.sft import Sft
from ...errors import ConfigError, DataError
from ...inert import marked
from .. import checks, templates
from ..chat_template import ChatTemplate
from ..fields import field, json_list, kind, text_of
from . import blocks
from .chat import Chain, chains_of
from .tokens import END, Piece

Row = Mapping[str, Any]
INPUTS = ("messages", "prompt", "text")
OUTPUTS = ("segments", "response", "completion")


class Reader:
    """Reads rows by the [sft] section.

    Args:
        cfg: The [sft] section.
        template: The tokenizer's chat template; None if it has none.
        bos: Begins every text that no chat template renders.
        specials: Texts of special tokens, which are inert in a row's text.

    Attributes:
        notes: Counts what was added to the rows' messages (chat.NO_END, chat.THOUGHTS).

    Raises:
        ConfigError: Settings contradict each other.
    """

    def __init__(self, cfg: Sft, template: ChatTemplate | None, bos: str = "", specials: Sequence[str] = ()) -> None:
        self.cfg = cfg
        self.template = template
        self.bos = bos
        self.specials = tuple(specials)
        self.notes: Counter[str] = Counter()
        self.prompt_template = templates.resolve(cfg.input_template)
        if cfg.apply_chat_template:
            self._chat_template("sft.apply_chat_template is set")

    def __call__(self, where: str, row: Row) -> list[Chain]:
        """Return the chains of a row. Raises DataError, or ConfigError if the model cannot have such rows at all."""
        row = self._with_messages(where, row)
        input_column, input_value = self._input(where, row)
        output_column = self._output(row, input_column)
        if isinstance(input_value, list):
            return self._chat(where, row, input_value, input_column, output_column)
        prompt = text_of(where, row, input_column)
        if output_column == "segments":  # A run rendered the prompt, so its special tokens are meant.
            return [_segments(where, prompt, row)]
        if output_column is None:
            return [[*self._begin(prompt), *self._learned(where, prompt)]]
        response = text_of(where, row, output_column)
        columns = templates.texts_of(self.prompt_template, row, where)
        if self.cfg.apply_chat_template:
            messages = [
                {"role": "user", "content": templates.render(self.prompt_template, prompt, columns)},
                {"role": "assistant", "content": response},
            ]
            return self._rendered(where, messages, _tools(where, row))
        columns = {name: marked(text, self.specials) for name, text in columns.items()}
        shown = templates.render(self.prompt_template, marked(prompt, self.specials), columns)
        return [[*self._begin(shown), Piece(shown, "template"), *self._learned(where, response)]]

    def _begin(self, text: str) -> Chain:
        return [Piece(self.bos, "template")] if self.bos and not text.startswith(self.bos) else []

    def _with_messages(self, where: str, row: Row) -> Row:
        """Return a row of instruction, input and output as a row of messages; other rows as they are.

        A row without an input has its instruction as the user's message.
        """
        if self.cfg.input_key is not None or any(row.get(name) is not None for name in INPUTS):
            return row
        if any(row.get(name) is None for name in ("instruction", "output")):
            return row
        texts = [text_of(where, row, "instruction"), *([text_of(where, row, "input")] if row.get("input") else [])]
        roles = ("system", "user") if len(texts) > 1 else ("user",)
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        return {"messages": [*messages, {"role": "assistant", "content": text_of(where, row, "output")}]}

    def _input(self, where: str, row: Row) -> tuple[str, Any]:
        for name in INPUTS if self.cfg.input_key is None else (self.cfg.input_key,):
            if row.get(name) is not None:
                return name, row[name]
        wanted = (
            f"no column {self.cfg.input_key!r} (sft.input_key)"
            if self.cfg.input_key
            else f"none of the columns {', '.join(INPUTS)}"
        )
        raise DataError(
            f"{where} has {wanted}. It has: {shorten(', '.join(map(str, row)))}."
            " Set sft.input_key and sft.output_key to the columns."
        )

    def _output(self, row: Row, given: str) -> str | None:
        if self.cfg.output_key is not None or given != "prompt":
            return self.cfg.output_key
        return next((name for name in OUTPUTS if row.get(name) is not None), "response")

    def _chat(self, where: str, row: Row, messages: list[Any], given: str, answer: str | None) -> list[Chain]:
        if answer is not None:
            more = row.get(answer)
            messages = messages + (
                [{"role": "assistant", "content": more}]
                if isinstance(more, str)
                else field(where, row, answer, list, "text or messages")
            )
        checks.messages(messages, where, given)
        return self._rendered(where, messages, _tools(where, row))

    def _rendered(self, where: str, messages: Sequence[Row], tools: Sequence[Row]) -> list[Chain]:
        template = self._chat_template(f"{where} is a chat")
        return chains_of(
            where, messages, tools, template, every=self.cfg.multiturn, masked=self.cfg.mask_blocks, notes=self.notes
        )

    def _chat_template(self, why: str) -> ChatTemplate:
        if self.template is None:
            raise ConfigError(
                f"{why}, but the model's tokenizer has no chat template. Add chat_template.jinja to"
                " actor.model_name_or_path, or write rows of prompt and response."
            )
        return self.template

    def _learned(self, where: str, text: str) -> Chain:
        cut = blocks.cut(checks.text(text, where, "the response"), self.cfg.mask_blocks, where)
        return [
            *(Piece(part, "env" if tool else "model") for part, tool in cut),
            *([Piece("", "model", END)] if self.cfg.append_eos else []),
        ]


def _tools(where: str, row: Row) -> list[Row]:
    return [] if row.get("tools") in (None, "", []) else json_list(where, row, "tools")


def _segments(where: str, prompt: str, row: Row) -> Chain:
    segments = field(where, row, "segments", list, "a list of segments")
    chain = [Piece(prompt, "template")]
    for number, segment in enumerate(segments):
        if (
            not isinstance(segment, Mapping)
            or segment.get("source") not in ("model", "env")
            or not isinstance(segment.get("text"), str)
            or not isinstance(segment.get("end", ""), str)
            or not isinstance(segment.get("spelled") or "", str)
        ):
            raise DataError(
                f'{where}: segments[{number}] is {kind(segment)}, no segment. Write {{"source":'
                ' "model" or "env", "text": "...", "end": "..."}.'
            )
        # A run spelled its special tokens: a call may begin with one, and a tool may have printed the text of another.
        spelled = segment.get("spelled")
        text = checks.text(spelled or segment["text"], where, f"segments[{number}].text")
        if segment["source"] == "model":
            chain.append(Piece(text, "model", segment.get("end", ""), rendered=bool(spelled)))
        else:
            chain.append(Piece(text, "template" if segment.get("rendered") else "env"))
    return chain
