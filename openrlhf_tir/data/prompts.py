"""Read the rows of a data set as tasks.

    rows -> problems(): input, label, env, checked -> load_prompts(): template or chat template, length limit ->
    PromptSet

Reads OpenRLHF's rows (data.input_key, data.label_key), ZeroTIR's, whose label is a JSON string with gold_ans and
env_func, and those of other methods (schemas.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from ..config import Data
from ..config.environments import entry_of
from ..config.paths import shorten, shown
from ..errors import ConfigError, DataError
from ..inert import marked
from ..rewards.checking.json_value import json_or_none
from ..types import Chat, Task
from . import checks, templates
from .bad_rows import Bad, BadRows
from .bfcl.prompt import CHAT_TOOLS
from .cache import Entry, cache_directory, tokenizer_digest
from .chat_template import ChatTemplate, Message, TemplateRefuses, bos_of, special_texts
from .chat_values import chat_of
from .export_template import template_of, without_question
from .extra_columns import extra_of
from .identity import row_id
from .lost_parts import hidden_in_context, lost_in_context
from .problem_set import Problem, ProblemSet, problem_set
from .prompt_set import TOO_LONG, Prepared, PromptSet, stored_prompts
from .rows import Row, read_rows
from .schemas import ENV_COLUMN, INPUT, LABEL, QUESTION_ANSWER, SCHEMAS, Reader

__all__ = ["Problem", "PromptSet", "load_prompts", "problems", "rows_and_problems"]

log = logging.getLogger(__name__)
T = TypeVar("T")

ENV_FUNCS = {"math_tir_async": "python_tir", "math_tir": "python_tir"}
"""ZeroTIR's env_func -> our environment."""


def problems(cfg: Data, bad: Bad | None = None, *, labels: bool = True) -> Iterator[Problem]:
    """Yield the checked rows of all data sets, at most data.max_samples of each.

    Args:
        cfg: The [data] section.
        bad: Gets each bad row; by default it does as data.on_bad_row says.
        labels: Whether a row without a label is a bad row.

    Raises:
        ConfigError: A column is unknown.
        DataError: A row has no input or label, and `bad` does not accept that.
    """
    return (problem for _, problem in rows_and_problems(cfg, bad, labels=labels))


def distinct_problems(
    cfg: Data, bad: BadRows, input_templates: Iterable[str | None], *, labels: bool = True
) -> ProblemSet:
    """Return the same, each problem once however many rows it has; from the cache if an earlier start stored it there.

    Rows of one problem that differ in a column that `input_templates`, the resolved templates of the run, put into the
    prompt are different problems.
    """
    named = {name for template in input_templates for name in templates.columns_of(template)}
    in_prompt = sorted({TOOLS, TEMPLATE_OPTIONS, *named})
    return problem_set(cfg, bad, lambda counted: problems(cfg, counted, labels=labels), in_prompt, labels=labels)


def rows_and_problems(
    cfg: Data,
    bad: Bad | None = None,
    completed: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: row,
    *,
    labels: bool = True,
) -> Iterator[tuple[dict[str, Any], Problem]]:
    """Yield (row, problem), as `problems` does.

    Args:
        cfg: The [data] section.
        bad: Gets each bad row.
        completed: Turns a row of the file into the row that is read.
        labels: Whether a row without a label is a bad row.
    """
    bad = bad or BadRows(cfg.on_bad_row)
    for number, source in enumerate(cfg.datasets):
        rows = ((where, completed(row)) for where, row in read_rows(source, cfg.prompt_split, bad))
        for row, problem in _of_source(source, islice(rows, cfg.max_samples), cfg, bad, labels):
            yield row, problem._replace(dataset=number)


def _of_source(
    source: str, rows: Iterator[Row], cfg: Data, bad: Bad, labels: bool
) -> Iterator[tuple[dict[str, Any], Problem]]:
    reader: Reader | None = None
    first_error: ConfigError | None = None
    for where, row in rows:
        if reader is None:
            cfg = _settings_for(source, where, row, cfg, labels)
            try:
                reader = reader_of(source, row, cfg, labels=labels)
            except ConfigError as error:
                if cfg.on_bad_row == "error" or cfg.row_schema is not None:
                    raise
                # None of its columns is known. It may be one odd row; if all rows are like it, this error is raised.
                first_error = first_error or error
                bad(DataError(f"{where}: {error}"))
                continue
            if reader.schema is not None:
                cfg = cfg.model_copy(update={"input_key": INPUT, "label_key": LABEL})
        try:
            problem = _problem(where, reader(where, row), cfg, labels)
        except DataError as error:
            bad(error)
        else:
            prompt_column = cfg.input_key if reader.schema is None else reader.question
            extra = extra_of(row, {prompt_column, ENV_COLUMN}, problem.meta)
            yield row, problem._replace(extra=extra.columns, left_out=extra.left_out)
    if reader is None and first_error is not None:
        raise first_error


def _settings_for(source: str, where: str, row: dict[str, Any], cfg: Data, labels: bool) -> Data:
    """Return the settings to read a data set by, given its first row.

    An evaluation may be of another source than the training rows. If the settings of those do not fit, its columns are
    recognised, as without such settings.
    """
    defaults = {name: Data.model_fields[name].default for name in ("row_schema", "input_key", "label_key")}
    by_columns = cfg.model_copy(update=defaults)

    def fits(settings: Data) -> bool:
        try:
            reader_of(source, row, settings, labels=labels)(where, row)
        except (ConfigError, DataError):
            return False
        return True

    return by_columns if cfg.ANY_COLUMNS and not fits(cfg) and fits(by_columns) else cfg


DEFAULT_KEYS = {f"data.{name}": Data.model_fields[name].default for name in ("input_key", "label_key")}


def reader_of(source: str, row: Mapping[str, Any], cfg: Data, *, labels: bool = True) -> Reader:
    """Return how the rows are read of which this is one.

    Args:
        source: The data set, for messages.
        row: The first row.
        cfg: The [data] section.
        labels: Whether rows must have a label.

    Raises:
        ConfigError: Its columns are neither those of the settings nor of a known schema.
    """
    keys = {"data.input_key": cfg.input_key, "data.label_key": cfg.label_key}
    plain = all(_column(row, key) is not _MISSING for key in keys.values())
    reader = Reader.of(cfg.row_schema, row, plain, (cfg.input_key, cfg.label_key), labels)
    if cfg.row_schema is None and reader.schema in (None, QUESTION_ANSWER):
        for setting, key in keys.items():
            # A column that the user names is meant, so no other is guessed in its place.
            guessed = reader.schema is not None and key == DEFAULT_KEYS[setting]
            needed = labels or setting == "data.input_key" or key != DEFAULT_KEYS[setting]
            if needed and not guessed and _column(row, key) is _MISSING:
                known = shorten(", ".join(map(str, row)))
                raise ConfigError(
                    f"{setting} = {key!r} is not a column of {source}. Known: {known}. Set --{setting} to one of them"
                    " (a.b reaches into an object), or --data.row_schema to what the rows are:"
                    f" {', '.join(sorted(SCHEMAS))}."
                )
    return reader


def env_of(problem: Problem, known: Sequence[str]) -> str:
    """Return the environment of a row: the one that it names, or the only one.

    Raises:
        DataError: It names an unknown environment, or none among several.
    """
    if problem.env is None and len(known) == 1:
        return known[0]
    several = ", ".join(known)
    if problem.env is None:
        raise DataError(
            f"{problem.where} names no environment in column {ENV_COLUMN!r}, and the run has {several}. Fill it in."
        )
    if problem.env not in known:
        raise DataError(
            f"{problem.where}: {ENV_COLUMN} = {shown(problem.env, 60)} is not an environment of this run. Known:"
            f" {several}. Add [envs.{problem.env}], or correct the column."
        )
    return problem.env


_MISSING = object()


def _column(row: Mapping[str, Any], key: str) -> Any:
    """Return row[key]. `a.b` also reaches into a nested column, such as verl's reward_model.ground_truth."""
    if key in row:
        return row[key]
    node: Any = row
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return _MISSING
        node = node[part]
    return node


def _problem(where: str, row: Mapping[str, Any], cfg: Data, labels: bool) -> Problem:
    input_value = chat_of(_column(row, cfg.input_key))
    label = _column(row, cfg.label_key)
    columns = shorten(", ".join(map(str, row)))
    if _empty(input_value):
        raise DataError(
            f"{where} has no input in column {cfg.input_key!r}. Its columns: {columns}. Fill it in or remove the row."
        )
    if not isinstance(input_value, str | list):
        raise DataError(
            f"{where}: {cfg.input_key} = {shown(input_value, 60)} is a {type(input_value).__name__}."
            " Write text, or a list of chat messages."
        )
    if isinstance(input_value, str):
        checks.text(input_value, where, cfg.input_key)
    else:
        checks.messages(input_value, where, cfg.input_key)
    env = _env_column(row, where)
    meta = _meta(row, where)
    zerotir_facts = _zerotir_label(label)
    if zerotir_facts is not None:
        label = zerotir_facts.pop("gold_ans")
        env = env or _env_of(zerotir_facts.get("env_func"), where)
        meta.update(checks.json_value(zerotir_facts, where, cfg.label_key))
    if _empty(label):
        if labels:
            raise DataError(no_label(where, cfg.label_key, columns))
        label = ""
    checks.json_value(label, where, cfg.label_key)
    return Problem(
        where, input_value, label if isinstance(label, str) else json.dumps(label, ensure_ascii=False), env, meta
    )


def no_label(where: str, key: str, columns: str | None = None) -> str:
    """Return the message for a row that lacks the label that its reward needs."""
    columns_note = f" Its columns: {columns}." if columns else ""
    return (
        f"{where} has no label in column {key!r}.{columns_note} Without a label no answer can be rewarded: fill it in,"
        " name the column with --data.label_key, or remove the row. Rewards that do not compare with a label (env,"
        " model, remote, your own) need none."
    )


def _empty(value: Any) -> bool:
    return value is _MISSING or value is None or value in ([], {}) or (isinstance(value, str) and not value.strip())


def _env_column(row: Mapping[str, Any], where: str) -> str | None:
    env = row.get(ENV_COLUMN)
    if env is not None and not isinstance(env, str):
        raise DataError(
            f"{where}: {ENV_COLUMN} = {shown(env, 60)} is a {type(env).__name__}, not the name of an environment."
            " Write text, or rename the column."
        )
    return checks.text(env, where, ENV_COLUMN) if env else None


def _meta(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return what the environment and the report also get: the columns `meta` and `datasource`."""
    meta = row.get("meta")
    if meta is not None and not isinstance(meta, Mapping):
        raise DataError(
            f'{where}: meta = {shown(meta, 60)} is a {type(meta).__name__}. Write an object, {{"key": value}}, or'
            " rename the column."
        )
    meta = dict(checks.json_value(meta, where, "meta") or {})
    if row.get("datasource") is not None:
        meta["datasource"] = checks.json_value(row["datasource"], where, "datasource")
    return meta


def _zerotir_label(label: Any) -> dict[str, Any] | None:
    """Return the content of a ZeroTIR label, else None. An ordinary answer may be JSON too ("3", "[1, 2]")."""
    if not isinstance(label, str) or not label.lstrip().startswith("{"):
        return None
    facts = json_or_none(label)
    return facts if isinstance(facts, dict) and "gold_ans" in facts else None


def _env_of(env_func: Any, where: str) -> str | None:
    if env_func is not None and (not isinstance(env_func, str) or env_func not in ENV_FUNCS):
        known = ", ".join(sorted(ENV_FUNCS))
        raise DataError(
            f"{where} has env_func {shown(env_func)} in its label. Known: {known}."
            f" Name the environment in column {ENV_COLUMN!r} instead."
        )
    return ENV_FUNCS.get(env_func) if env_func else None


def load_prompts(
    cfg: Data,
    tokenizer: Any = None,
    *,
    env: str = "python_tir",
    templates_of: Mapping[str, str | None] | None = None,
    max_prompt_tokens: int | None = None,
    tools_of: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    unlabelled: Collection[str] = (),
) -> PromptSet:
    """Read, render and check every prompt. Each distinct prompt is done once, or taken from the cache of an earlier
    start.

    Args:
        cfg: The [data] section.
        tokenizer: A transformers tokenizer; needed for data.apply_chat_template and for the length limit.
        env: The environment of rows that name none.
        templates_of: Environment -> its template, if the run has several; then every row must name one of them.
        max_prompt_tokens: Longer prompts are dropped and counted (default data.max_len - 1).
        tools_of: Environment -> the schemas that the chat template is given, unless a row has its own
            (meta.chat_tools).
        unlabelled: The environments whose rows need no label.

    Raises:
        ConfigError: A data set, split, column or template is unknown.
        DataError: A row has no input, label or environment, and data.on_bad_row is "error"; with "skip" too, if every
            row is bad or a file is damaged.
        Unavailable: The hub does not answer.
    """
    resolved = {name: templates.resolve(template_text) for name, template_text in (templates_of or {}).items()}
    template = templates.resolve(cfg.input_template)
    if cfg.apply_chat_template and getattr(tokenizer, "chat_template", None) is None:
        raise ConfigError(
            "data.apply_chat_template is set, but the model's tokenizer has no chat template. Use"
            " --data.input_template, e.g. zerotir."
        )
    limit = cfg.max_len - 1 if max_prompt_tokens is None else max_prompt_tokens
    bad = BadRows(cfg.on_bad_row)
    problem_rows = distinct_problems(cfg, bad, resolved.values() or [template], labels=not unlabelled)
    tokenizer_id = tokenizer_digest(tokenizer)
    made_from = [
        problem_rows.digest,
        tokenizer_id,
        limit,
        env,
        resolved,
        template,
        tools_of,
        sorted(unlabelled),
        cfg.apply_chat_template,
        cfg.rendered,
        cfg.chat_template_options,
        cfg.on_bad_row,
    ]
    cacheable = problem_rows.digest is not None and tokenizer_id is not None
    entry = Entry(cache_directory() if cacheable else None, "prompts", made_from)
    counts = problem_rows.counts()
    chat_template = None
    if cfg.apply_chat_template:
        # The template of a model that an earlier run exported wraps questions as that run did. This run has its own
        # data.input_template, so that part is removed.
        own = template_of(tokenizer) or ""
        unwrapped = {} if without_question(own) == own else {"chat_template": without_question(own)}
        chat_template = ChatTemplate.of(tokenizer, {**cfg.chat_template_options, **unwrapped})

    def rendered(row_errors: BadRows) -> Iterator[tuple[int, Task]]:
        for place, problem in enumerate(problem_rows.distinct):
            try:
                name = env_of(problem, [*resolved]) if resolved else problem.env or env
                if not problem.label and name not in unlabelled:
                    raise DataError(no_label(problem.where, cfg.label_key))
                tools = own_tools(problem) or (entry_of(tools_of, name) if tools_of else ())
                input_template = resolved.get(name, template)
                chat = None
                if chat_template is None:
                    prompt = render_text(problem, input_template, tokenizer, is_rendered=cfg.rendered)
                else:
                    prompt, chat = render_chat(problem, cfg.input_key, input_template, chat_template, tuple(tools))
            except DataError as error:
                row_errors(error, int(counts[place]))
                continue
            row = row_id(problem.input, problem.label)
            task = Task(prompt, problem.label, name, problem.meta, chat=chat, row=row, extra=problem.extra)
            yield place, task

    def prepare(row_errors: BadRows) -> Prepared:
        return _fitting(rendered(row_errors), tokenizer, limit)

    prompts = stored_prompts(entry, problem_rows, prepare, bad)
    bad.check_some_good(len(prompts) + prompts.dropped.get(TOO_LONG, 0), cfg.datasets)
    for line in bad.facts():
        log.warning(line)
    return prompts


def own_tools(problem: Problem) -> Sequence[Mapping[str, Any]]:
    """Return the schemas of the row's own tools: meta.chat_tools, or TRL's column `tools`.

    Raises:
        DataError: meta.chat_tools is not a list of schemas.
    """
    column = problem.extra.get(TOOLS)
    if CHAT_TOOLS not in problem.meta and isinstance(column, list) and all(_is_schema(tool) for tool in column):
        return column
    tools = problem.meta.get(CHAT_TOOLS) or []
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise DataError(
            f"{problem.where}: meta.{CHAT_TOOLS} = {shown(tools, 60)} is not a list of tool schemas in OpenAI's form."
            " Correct the row."
        )
    return tools


def _is_schema(tool: Any) -> bool:
    return isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping)


TOOLS = "tools"
"""Column of TRL's rows with the schemas of tools for the chat template."""
TEMPLATE_OPTIONS = "chat_template_kwargs"
"""Column of TRL's rows with keyword arguments of the chat template."""
MAX_TOKEN_CHARS = 1024
"""No token of a known vocabulary stands for so many characters. So a prompt beyond limit * this is too long without
asking the tokenizer, which would take minutes and gigabytes for a row of many megabytes."""


TOKENISED_AT_ONCE = 256
"""Prompts in one call of the tokenizer, whose encodings take about a hundred times the memory of the text."""


def _fitting(tasks: Iterable[tuple[int, Task]], tokenizer: Any, limit: int) -> Prepared:
    """Yield (place, task) with whether the prompt has at most `limit` tokens. Without a tokenizer every prompt fits."""
    for batch in batched(tasks, TOKENISED_AT_ONCE):
        if tokenizer is None:
            yield from ((place, task, True) for place, task in batch)
            continue
        texts = [task.prompt for _, task in batch if len(task.prompt) <= limit * MAX_TOKEN_CHARS]
        lengths = iter([len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]] if texts else [])
        for place, task in batch:
            is_tokenised = len(task.prompt) <= limit * MAX_TOKEN_CHARS
            yield place, task, is_tokenised and next(lengths) <= limit


def batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield tuples of `size` items; the last one may be shorter (itertools.batched, which Python 3.11 lacks)."""
    iterator = iter(items)
    while batch := tuple(islice(iterator, size)):
        yield batch


def render_text(problem: Problem, template: str | None, tokenizer: Any = None, *, is_rendered: bool = False) -> str:
    """Return the prompt of a run without chat template.

    With a tokenizer, special tokens in the row's text are inert, and the prompt begins with the token that the
    tokenizer puts before every text, if it has one, because base models were trained with it. A text that a chat
    template has rendered (`is_rendered`, data.rendered) has both already and stays as it is.

    Raises:
        DataError: The input is not text and has no user message.
    """
    text = problem.input if isinstance(problem.input, str) else _last_user_text(problem, template)
    columns = templates.texts_of(template, problem.extra, problem.where)
    if tokenizer is None or is_rendered:
        return templates.render(template, text, columns)
    specials = special_texts(tokenizer)
    columns = {name: marked(value, specials) for name, value in columns.items()}
    prompt = templates.render(template, marked(text, specials), columns)
    bos = bos_of(tokenizer)
    return prompt if prompt.startswith(bos) else bos + prompt


def render_chat(
    problem: Problem, column: str, input_template: str | None, template: ChatTemplate, tools: tuple[Message, ...]
) -> tuple[str, Chat]:
    """Return the prompt that the chat template renders, and its messages.

    Args:
        problem: The row.
        column: Its column with the messages, for errors.
        input_template: The template of a prompt that is text, which becomes the user's message.
        template: The chat template.
        tools: Schemas of the tools.

    Raises:
        DataError: The template refuses the messages, or leaves a part of them out.
    """
    messages = problem.input
    if isinstance(messages, str):
        columns = templates.texts_of(input_template, problem.extra, problem.where)
        messages = [{"role": "user", "content": templates.render(input_template, messages, columns)}]
    chat = Chat(tuple(messages), tools, of_text=isinstance(problem.input, str))
    template = template.with_options(options_of(problem.extra))
    messages, shown_tools = template.inert(messages), template.inert(tools)
    try:
        text = template.render(messages, shown_tools)
    except TemplateRefuses as error:
        raise DataError(
            f"{problem.where}: {error}. Correct the messages in {column!r}, or use --data.input_template without"
            " --data.apply_chat_template."
        ) from None
    if lost := lost_in_context(messages, text) or hidden_in_context(template, messages, shown_tools):
        raise DataError(
            f"{problem.where}: the model's chat template leaves out a part of the chat in {column!r}: {lost}."
            " Write it into a message's content, set data.chat_template_options so that it is kept, or remove the row."
        )
    return text, chat


def options_of(columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row's own keyword arguments of the chat template."""
    options = columns.get(TEMPLATE_OPTIONS)
    return options if isinstance(options, Mapping) else {}


def _last_user_text(problem: Problem, template: str | None) -> str:
    """Return what a text template uses of a chat: its last user message, as ToRL does with verl's rows."""
    messages = problem.input if isinstance(problem.input, list) else []
    texts = [
        message["content"]
        for message in messages
        if isinstance(message, Mapping) and message.get("role") == "user" and isinstance(message.get("content"), str)
    ]
    if template is None or not texts:
        raise DataError(
            f"{problem.where} has a {type(problem.input).__name__} as its input, not text. "
            "Set --data.apply_chat_template for chats, or --data.input_template to use the last user message."
        )
    return texts[-1]
