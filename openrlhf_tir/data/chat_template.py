"""Render messages as the text that the model reads, and find what a template adds after a sampled message.

    prompt    <|im_start|>user ... <|im_start|>assistant\\n                the first sampled message follows it
    sampled   Let me see. <tool_call> ... </tool_call><|im_end|>           stays as it was sampled
    tail      <|im_end|>\\n<|im_start|>user ... <|im_start|>assistant\\n   what the template adds for the messages after

The tail is found by rendering the conversation with a stand-in for the sampled message: what follows the stand-in is
the tail. So a sampled message is never rendered, and it does not matter if the template would render it in another way
(without its thinking, without white space).

Text from outside is inert: if a tool prints "<|im_end|>", it is rendered with a mark inside, so the only special tokens
of the result are those that the template wrote.

A template that writes the time writes the time when this process first rendered, so two renderings of a conversation
are equal.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, cached_property, lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.paths import shorten
from ..errors import ConfigError, DataError
from ..inert import ESCAPED_MARK, MARK, marked_in
from ..rewards.checking.json_value import json_or_none

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
Apply = Callable[..., str]
"""(messages, tools=..., add_generation_prompt=...) -> text, as `tokenizer.apply_chat_template(tokenize=False)`. It may
raise anything."""

STAND_IN = "sampledassistanttext"
"""Stands for a sampled message. No template treats letters in a special way."""
CALLS: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {"sampledargument": "sampledvalue"})
"""Arguments of two calls that stand for a sampled one. What follows the call must not depend on them."""


FIXED_DAY = datetime(2000, 1, 1)
"""The time with which renderings of different days are compared."""
SHORT_CHARS = 12
"""A content of so many characters may be in a rendered text by chance."""
TRIAL_S = 30.0
"""Seconds within which a few short messages must be rendered."""
RENDERINGS = 8
"""Renderings that are compared to find a template that writes something random."""
MAX_VARIANTS = 64
"""Sets of options whose templates are kept: a data set may have other options in every row."""
TOOL_ROLES = ("tool", "function", "ipython", "observation")
"""Roles of messages that a tool wrote."""


class TemplateRefuses(DataError):
    """The template raised for a conversation."""


@cache
def _first_rendering() -> datetime:
    return datetime.now()


def strftime_now(time_format: str) -> str:
    """Format the time when this process first rendered a template: what a template calls for the time."""
    return _first_rendering().strftime(time_format)


class ChatTemplate:
    """A chat template.

    Args:
        apply: Renders messages.
        specials: The texts of all special tokens.
        added: The texts of added tokens that are not special, such as <tool_call>.
        writes_time: Whether it may write the time.
    """

    def __init__(
        self, apply: Apply, specials: Sequence[str], added: Sequence[str] = (), *, writes_time: bool = False
    ) -> None:
        self._apply = apply
        self.specials = tuple(specials)
        self.added = tuple(added)
        self.writes_time = writes_time
        self._variants: dict[str, ChatTemplate] = {}
        """JSON of options -> the template with them."""
        longest_first = "|".join(map(re.escape, sorted(specials, key=len, reverse=True)))
        self._specials = re.compile(f"({longest_first or '(?!)'})")  # (?!) matches nothing

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> ChatTemplate:
        """Return a tokenizer's own template. `options` are data.chat_template_options."""

        writes_time = "strftime_now" in str(options.get("chat_template") or tokenizer.chat_template)
        clock = {"strftime_now": strftime_now} if writes_time else {}

        def apply(messages: Sequence[Message], **arguments: Any) -> str:
            return str(
                tokenizer.apply_chat_template(list(messages), tokenize=False, **{**clock, **options, **arguments})
            )

        return cls(apply, special_texts(tokenizer), added_texts(tokenizer), writes_time=writes_time)

    def with_options(self, options: Mapping[str, Any]) -> ChatTemplate:
        """Return the template with further keyword arguments, which take precedence.

        Rows with the same options get the same template: it finds out once which forms the template is written for,
        which takes up to 35 renderings.
        """
        if not options:
            return self
        key = json.dumps(options, sort_keys=True, default=repr)
        if key not in self._variants:
            if len(self._variants) >= MAX_VARIANTS:
                self._variants.clear()
            apply = partial(self._apply, **options)
            self._variants[key] = ChatTemplate(apply, self.specials, self.added, writes_time=self.writes_time)
        return self._variants[key]

    def render(self, messages: Sequence[Message], tools: Sequence[Message] = (), *, go_on: bool = True) -> str:
        """Return a conversation as text.

        Args:
            messages: The conversation.
            tools: Schemas of the tools.
            go_on: Whether the assistant speaks next, so that the generation prompt is added.

        Raises:
            TemplateRefuses: The template raised.
        """
        try:
            rendered = self._apply(
                [self._in_its_form(m) for m in messages], tools=list(tools) or None, add_generation_prompt=go_on
            )
            # A text may have these letters itself, and no mark.
            if ESCAPED_MARK in rendered and MARK in json.dumps([messages, tools], ensure_ascii=False):
                rendered = rendered.replace(ESCAPED_MARK, MARK)
            return rendered
        except Exception as error:  # The template is a program of the model's author and may raise anything.
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise TemplateRefuses(
                f"the chat template refuses a conversation of {roles}: {type(error).__name__}: {shorten(str(error))}"
            ) from None

    def tail(
        self,
        before: Sequence[Message],
        after: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        call: bool = False,
        go_on: bool = True,
        word: str = STAND_IN,
    ) -> str:
        """Return what the template adds after a sampled message: its end, and the messages `after` it.

        Args:
            before: The messages before the sampled one.
            after: The messages after it.
            tools: Schemas of the tools.
            call: Whether to show the sampled message to the template as a call of a tool, which some (Mistral's)
                require before a tool's reply. They render calls themselves, so the tail starts where the continued
                conversation differs from one that ends there: at the token that ends the message, or after the call if
                the turn goes on.
            go_on: Whether the assistant speaks next.
            word: What stands for a message that is no call.

        Raises:
            TemplateRefuses: The template refuses the conversation or leaves the message out, or a part of the call
                itself would be in the tail.
        """
        if call:
            name = next((str(m["name"]) for m in after if m.get("name")), "tool")
            tails = [self._after_call(before, after, tools, (name, arguments), go_on) for arguments in CALLS]
            if tails[0] != tails[1]:
                raise TemplateRefuses("the chat template repeats a call after it, so the end of the call is unknown")
            return tails[0]
        while any(word in str(message) for message in (*before, *after)):  # A tool may print the stand-in.
            word += "x"
        text = self.render([*before, stand_in(before, word=word), *after], tools, go_on=go_on)
        if word not in text:
            raise TemplateRefuses("the chat template leaves an assistant message out when others follow it")
        if text.count(word) > 1:
            raise TemplateRefuses("the chat template writes an assistant message more than once")
        return text.partition(word)[2]

    def end_of_message(self, before: Sequence[Message], tools: Sequence[Message], *, call: bool) -> str:
        """Return the special token that the template writes at the end of a sampled message; "" if it writes none.

        After a call some templates (Gemma 4's) write none if the tool's reply follows: the turn goes on.
        """
        end = self.first_special(self.tail(before, (), tools, call=call, go_on=False))
        if call or not end:
            return end
        # Some templates end the whole conversation by a token, and no message. Where it goes on, they begin the next.
        try:
            behind = self.tail(before, (), tools)
        except TemplateRefuses:  # no generation prompt behind a message of the assistant
            return end
        asked = self.render(before, tools, go_on=False)
        prompt = self.render(before, tools)
        generation_prompt = prompt[len(self._common_start(asked, prompt)) :]
        return self.first_special(behind.removesuffix(generation_prompt))

    def _in_its_form(self, message: Message) -> Message:
        """Return a message in the form that the template is written for."""
        if message.get("tool_calls"):
            message = self._with_arguments(message)
        content = message.get("content", "")
        if content is None or (content == "" and message.get("tool_calls")):
            return {**message, "content": self._call_forms[content][0]}
        if isinstance(content, str) and self._wants_parts:
            return {**message, "content": [{"type": "text", "text": content}]}
        return message

    @cached_property
    def _wants_parts(self) -> bool:
        """True if the template shows a content only if it is a list of parts."""
        text, parts = ([{"role": "user", "content": c}] for c in (STAND_IN, [{"type": "text", "text": STAND_IN}]))
        if STAND_IN in self._try(text):
            return False
        written = self._try(parts)
        return STAND_IN in written and "'text'" not in written  # not the list as Python writes it

    def _with_arguments(self, message: Message) -> Message:
        """Return a message whose calls have their arguments in the form that the template is written for.

        OpenAI's API and many data sets have JSON text there, most templates an object: of the text they would write
        a JSON string.
        """
        wants_text = self._call_forms[""][1]

        def converted(call: Any) -> Any:
            if not isinstance(call, Mapping):
                return call
            if "function" in call:
                return {**call, "function": converted(call["function"])}
            arguments = call.get("arguments")
            if wants_text and isinstance(arguments, Mapping):
                return {**call, "arguments": json.dumps(arguments, ensure_ascii=False)}
            if not wants_text and isinstance(arguments, str) and isinstance(read := json_or_none(arguments), dict):
                return {**call, "arguments": self.inert(read)}  # Escapes of JSON may spell a token.
            return call

        calls = message["tool_calls"]
        return {**message, "tool_calls": [converted(call) for call in calls]} if isinstance(calls, list) else message

    @cached_property
    def _call_forms(self) -> Mapping[str | None, tuple[str | None, bool]]:
        """No content of a message that calls, "" or None -> what the template must be given instead, and whether the
        arguments must be JSON text.

        Some write calls only beside None, others write "None". The forms are tried with a tool's reply behind the call,
        before which some refuse None, and without it.
        """
        forms = {}
        for own, other in (("", None), (None, "")):
            tried = [(content, as_text) for content in (own, other) for as_text in (False, True)]
            good = (form for reply in (True, False) for form in tried if self._writes_well(*form, reply=reply))
            forms[own] = next(good, ("", False))
        return forms

    def _writes_well(self, content: str | None, as_text: bool, *, reply: bool) -> bool:
        """Return True if the template writes a call of this form as JSON would."""
        asked = {"role": "user", "content": STAND_IN}
        name, value = next(iter(CALLS[1].items()))
        arguments = json.dumps(CALLS[1]) if as_text else CALLS[1]
        call = {**stand_in([asked], call=True, word="tool", arguments=arguments), "content": content}
        result = {"role": "tool", "name": "tool", "tool_call_id": call_id([asked]), "content": STAND_IN}
        written = self._try([asked, call, result] if reply else [asked, call])
        if written.count("None") > self._try([asked]).count("None"):
            return False
        return f'"{name}"' in written if as_text else name in written and f"'{name}': '{value}'" not in written

    def _try(self, messages: Sequence[Message]) -> str:
        """Return a conversation as text, given to the template as it is; "" if the template refuses it."""
        with suppress(Exception):  # See `render`.
            return self._apply(messages, tools=None, add_generation_prompt=False)
        return ""

    def on_one_day(self) -> ChatTemplate:
        """Return the template with a fixed time, on which it renders the same in every process."""
        return self.with_options({"strftime_now": FIXED_DAY.strftime})

    def shows(self, messages: Sequence[Message], tools: Sequence[Message], i: int) -> bool:
        """Return False if the template leaves out what message `i` says or calls, though its words are in the text.

        A short content ("4") and short arguments may stand anywhere in a conversation, so others are tried in their
        place. Where the template refuses these, nothing is known against it.
        """
        message = dict(messages[i])
        words = []
        content = message.get("content")
        if isinstance(content, str) and 0 < len(content.strip()) <= SHORT_CHARS:
            message["content"] = STAND_IN
            words.append(STAND_IN)
        if message.get("tool_calls"):
            message["tool_calls"] = stand_in(messages[:i], call=True, arguments=CALLS[1])["tool_calls"]
            words += CALLS[1]
        if not words:
            return True
        try:
            text = self.render([*messages[:i], message, *messages[i + 1 :]], tools)
        except TemplateRefuses:
            return True
        return all(word in text for word in words)

    def check_ends(self, messages: Sequence[Message]) -> None:
        """Check that a conversation is rendered, or refused, within TRIAL_S.

        Raises:
            ConfigError: It is not.
        """

        def render() -> None:
            with suppress(TemplateRefuses):
                self.render(messages)

        thread = threading.Thread(target=render, name="chat_template_trial", daemon=True)
        thread.start()
        thread.join(TRIAL_S)
        if thread.is_alive():
            raise ConfigError(
                f"The model's chat template has not rendered {len(messages)} short messages within {TRIAL_S:g} s: a"
                " loop in it does not end. Copy it again from the model's source.",
                code="model",
            )

    def check_repeatable(self, messages: Sequence[Message]) -> None:
        """Check that a conversation is always rendered in the same way. One that the template refuses is not checked.

        Raises:
            ConfigError: It is not.
        """
        self.check_ends(messages)
        try:
            renderings = {self.render(messages) for _ in range(RENDERINGS)}
        except TemplateRefuses:
            return
        if len(renderings) > 1:
            raise ConfigError(
                f"The model's chat template renders the same conversation in {len(renderings)} ways in {RENDERINGS}"
                " tries: it writes something random, so what the model reads is not known. Take that out of the"
                " template (Jinja's `random` and `lipsum`).",
                code="model",
            )

    def _after_call(
        self,
        before: Sequence[Message],
        after: Sequence[Message],
        tools: Sequence[Message],
        call: tuple[str, Mapping[str, Any]],
        go_on: bool,
    ) -> str:
        message = stand_in(before, call=True, word=call[0], arguments=call[1])
        whole = self.render([*before, message, *after], tools, go_on=go_on)
        alone = self.render([*before, message], tools, go_on=False)
        ended = alone.rstrip()
        pieces = self.pieces(ended)
        if not after or whole.startswith(ended):
            start = len(ended) - len(pieces[-1][0]) if pieces and pieces[-1][1] else len(ended)
        else:  # The turn goes on: both texts are equal up to the end of the call.
            common = self._common_start(alone, whole)
            lengths = accumulate(len(piece) for piece, _ in self.pieces(whole))
            start = max((length for length in lengths if length <= len(common)), default=0)
        if call[0] not in whole[:start]:
            raise TemplateRefuses("the chat template does not show a call before the tool's reply")
        return whole[start:]

    def _common_start(self, first: str, second: str) -> str:
        """Return the text with which both begin, without a part of a special token of the second."""
        pairs = enumerate(zip(first, second, strict=False))
        common = first[: next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))]
        start = 0
        for piece, special in self.pieces(second):
            if special and start < len(common) < start + len(piece):
                return common[:start]
            start += len(piece)
        return common

    def inert(self, value: Any) -> Any:
        """Return messages, tools or a text from outside with a mark inside every special token's text.

        The only special tokens of a rendered text are then those that the template wrote (inert.py). What a tool wrote
        has no added token either, as in an episode: "<tool_call>" is a call only where the model writes it.
        """
        if isinstance(value, Mapping) and value.get("role") in TOOL_ROLES:
            return marked_in(value, (*self.specials, *self.added))
        if isinstance(value, list | tuple):
            return [self.inert(part) for part in value]
        return marked_in(value, (*self.specials, *self._turn_marks))

    @cached_property
    def _turn_marks(self) -> tuple[str, ...]:
        """Added tokens that are special but for their name: the template begins or ends plain messages with them, as
        DeepSeek's with <｜User｜>. Those in pairs, such as <think> and </think>, are text that a prompt may speak of.
        """
        said = [{"role": role, "content": STAND_IN} for role in ("user", "assistant", "user")]
        written = self._try(said)
        in_pairs = {text for text in self.added if {f"</{text[1:]}", f"<{text[2:]}"}.intersection(self.added)}
        return tuple(text for text in self.added if text in written and text not in in_pairs)

    def pieces(self, rendered: str) -> list[tuple[str, bool]]:
        """Return a rendered text, cut at its special tokens: (piece, whether it is a special token)."""
        # The pieces are alternately ordinary and special.
        return [(piece, i % 2 == 1) for i, piece in enumerate(self._specials.split(rendered)) if piece]

    def first_special(self, rendered: str) -> str:
        """Return the first special token; "" if there is none."""
        match = self._specials.search(rendered)
        return match[0] if match else ""


def stand_in(
    before: Sequence[Message], *, call: bool = False, word: str = STAND_IN, arguments: Any = None
) -> dict[str, Any]:
    """Return a message in place of a sampled one. A call is a call of the tool named `word`."""
    if not call:
        return {"role": "assistant", "content": word}
    function = {"name": word, "arguments": arguments or {}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id(before), "type": "function", "function": function}],
    }


def call_id(before: Sequence[Message]) -> str:
    """Return the id of the call after these messages: nine letters and digits, as Mistral's template requires."""
    return f"call{len(before):05d}"


@lru_cache(maxsize=4)
def bos_of(tokenizer: Any) -> str:
    """Return the text of the token that the tokenizer itself puts before every text; "" if it puts none.

    Base models of Llama, Gemma, Mistral and DeepSeek were trained with it. A chat template writes it itself.
    """
    bos = getattr(tokenizer, "bos_token", None)
    if not bos:
        return ""
    ids = tokenizer("x")["input_ids"]
    return str(bos) if len(ids) > 1 and ids[0] == tokenizer.bos_token_id else ""


@lru_cache(maxsize=4)
def added_texts(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts of a tokenizer's added tokens that are not special, such as <tool_call> or <think>."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    # An added token of white space (runs of blanks and newlines in some vocabularies) marks nothing.
    texts = {token.content for token in added if not token.special}
    return tuple(sorted(text for text in texts if len(text) > 1 and text.strip()))


@lru_cache(maxsize=4)
def special_texts_of(model: str) -> tuple[str, ...]:
    """Return the special tokens in a model directory's tokenizer.json, without a tokenizer; () if it cannot be read."""
    try:
        added = json.loads((Path(model) / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        return tuple(sorted(token["content"] for token in added if token["special"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()


@lru_cache(maxsize=4)
def special_texts(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts of a tokenizer's special tokens, including added tokens that have no name (eos, pad, ...).

    The unknown token is left out: it stands for characters that the vocabulary lacks, and is special only by name. The
    texts are kept, because collecting them takes longer than rendering a prompt.
    """
    if not hasattr(tokenizer, "all_special_tokens"):
        return ()
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    added_specials = {token.content for token in added if token.special}
    return tuple(sorted({*tokenizer.all_special_tokens, *added_specials} - {tokenizer.unk_token}))
