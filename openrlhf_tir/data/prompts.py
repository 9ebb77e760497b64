"""Prompts: rows of a data set -> Tasks.

    rows -> problems(): input, label, env, checked -> load_prompts(): template or chat template, length limit ->
    PromptSet

Understands OpenRLHF's rows (data.input_key, data.label_key), ZeroTIR's, whose label is a JSON string with gold_ans and
env_func, and those of other methods (schemas.py).
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeVar

from ..config import Data
from ..config.environments import one
from ..config.paths import shorten, shown
from ..errors import ConfigError, DataError
from ..inert import marked, marked_in
from ..types import Chat, Task
from . import checks, templates
from .bad_rows import Bad, BadRows
from .bfcl.prompt import CHAT_TOOLS
from .cache import Entry, cache_directory, tokenizer_digest
from .chat_template import bos_of, specials_of
from .chat_values import chat_of
from .export_template import template_of, without_question
from .extra_columns import extra_of
from .identity import row_id
from .lost_parts import lost_in_context
from .problem_set import Problem, ProblemSet, problem_set
from .prompt_set import TOO_LONG, PromptSet, stored_prompts
from .rows import Row, read_rows
from .schemas import INPUT, LABEL, QUESTION_ANSWER, SCHEMAS, Reader

__all__ = ["Problem", "PromptSet", "load_prompts", "problems", "rows_and_problems"]

log = logging.getLogger(__name__)
T = TypeVar("T")

ENV_FUNCS = {"math_tir_async": "python_tir", "math_tir": "python_tir"}
"""ZeroTIR's env_func -> the environment here."""


def problems(cfg: Data, bad: Bad | None = None, *, labels: bool = True) -> Iterator[Problem]:
    """Checked rows of all data sets, of each at most data.max_samples. `bad` is told of each row that is none (default:
    as data.on_bad_row says). labels: whether a row without a label is a bad row.

    Raises ConfigError for an unknown column, DataError for a row without input or label unless `bad` lets it pass.
    """
    return (problem for _, problem in rows_and_problems(cfg, bad, labels=labels))


def distinct_problems(cfg: Data, bad: BadRows, *, labels: bool = True) -> ProblemSet:
    """The same, each problem once however many rows it has; from the cache where an earlier start left it there."""
    return problem_set(cfg, bad, lambda data, told, needed: problems(data, told, labels=needed), labels=labels)


def rows_and_problems(
    cfg: Data,
    bad: Bad | None = None,
    completed: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: row,
    *,
    labels: bool = True,
) -> Iterator[tuple[dict[str, Any], Problem]]:
    """The same, each with the row it was made of. `completed` makes of a row, as it is in the file, what's read."""
    bad = bad or BadRows(cfg.on_bad_row)
    for number, source in enumerate(cfg.datasets):
        rows = ((where, completed(row)) for where, row in read_rows(source, cfg.prompt_split, bad))
        for row, problem in _of_source(source, islice(rows, cfg.max_samples), cfg, bad, labels):
            yield row, problem._replace(dataset=number)


def _of_source(
    source: str, rows: Iterator[Row], cfg: Data, bad: Bad, labels: bool
) -> Iterator[tuple[dict[str, Any], Problem]]:
    reader: Reader | None = None
    unread: ConfigError | None = None
    in_prompt = [*templates.named_columns(cfg.input_template), TOOLS, TEMPLATE_OPTIONS]
    for where, row in rows:
        if reader is None:
            try:
                reader = reader_of(source, row, cfg, labels=labels)
            except ConfigError as error:
                if cfg.on_bad_row == "error" or cfg.row_schema is not None:
                    raise
                unread = unread or error  # none of its columns is known: one odd row, unless all are
                bad(DataError(f"{where}: {error}"))
                continue
            if reader.schema is not None:
                cfg = cfg.model_copy(update={"input_key": INPUT, "label_key": LABEL})
        try:
            problem = _problem(where, reader(where, row, cfg.env_key), cfg, labels)
        except DataError as error:
            bad(error)
        else:
            asked = cfg.input_key if reader.schema is None else reader.question
            extra = extra_of(row, {asked, cfg.env_key}, problem.meta)
            shown = {name: extra.columns[name] for name in in_prompt if name in extra.columns}
            yield row, problem._replace(extra=extra.columns, left_out=extra.left_out, shown=shown)
    if reader is None and unread is not None:
        raise unread


DEFAULT_KEYS = {f"data.{name}": Data.model_fields[name].default for name in ("input_key", "label_key")}


def reader_of(source: str, row: Mapping[str, Any], cfg: Data, *, labels: bool = True) -> Reader:
    """How the rows are read of which this is one. Raises ConfigError where its columns are neither those of the
    settings nor of a known schema. labels: whether the rows must have a label."""
    keys = {"data.input_key": cfg.input_key, "data.label_key": cfg.label_key}
    plain = all(_column(row, key) is not _MISSING for key in keys.values())
    reader = Reader.of(cfg.row_schema, row, plain, (cfg.input_key, cfg.label_key), labels)
    if cfg.row_schema is None and reader.schema in (None, QUESTION_ANSWER):
        for setting, key in keys.items():
            # A column that somebody names is meant: no other one is guessed in its place.
            guessed = reader.schema is not None and key == DEFAULT_KEYS[setting]
            needed = labels or setting == "data.input_key" or key != DEFAULT_KEYS[setting]
            if needed and not guessed and _column(row, key) is _MISSING:
                known = shorten(", ".join(map(str, row)))
                raise ConfigError(
                    f"{setting} = {key!r} is no column of {source}. Known: {known}. Set --{setting} to one of them"
                    " (a.b reaches into an object), or --data.row_schema to what the rows are:"
                    f" {', '.join(sorted(SCHEMAS))}."
                )
    return reader


def env_of(p: Problem, known: Sequence[str], env_key: str) -> str:
    """The environment of a row: the one that it names, or the only one. Raises DataError for a name that is none of
    `known`, or for no name among several."""
    if p.env is None and len(known) == 1:
        return known[0]
    several = ", ".join(known)
    if p.env is None:
        raise DataError(
            f"{p.where} names no environment in column {env_key!r}, and the run has {several}."
            " Fill it in, or set data.env_key to the column."
        )
    if p.env not in known:
        raise DataError(
            f"{p.where}: {env_key} = {shown(p.env, 60)} is no environment of this run. Known: {several}. Add"
            f" [envs.{p.env}], or correct the column."
        )
    return p.env


_MISSING = object()


def _column(row: Mapping[str, Any], key: str) -> Any:
    """row[key]; `a.b` also reaches into a nested column (verl's reward_model.ground_truth)."""
    if key in row:
        return row[key]
    node: Any = row
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return _MISSING
        node = node[part]
    return node


def _problem(where: str, row: Mapping[str, Any], cfg: Data, labels: bool) -> Problem:
    given = chat_of(_column(row, cfg.input_key))
    label = _column(row, cfg.label_key)
    columns = shorten(", ".join(map(str, row)))
    if _empty(given):
        raise DataError(
            f"{where} has no input in column {cfg.input_key!r}. Its columns: {columns}. Fill it in or remove the row."
        )
    if not isinstance(given, str | list):
        raise DataError(
            f"{where}: {cfg.input_key} = {shown(given, 60)} is a {type(given).__name__}."
            " Write text, or a list of chat messages."
        )
    checks.text(given, where, cfg.input_key) if isinstance(given, str) else checks.messages(given, where, cfg.input_key)
    env, meta = _env_column(row, where, cfg), _meta(row, where)
    facts = _zerotir_label(label)
    if facts is not None:
        label = facts.pop("gold_ans")
        env = env or _env_of(facts.get("env_func"), where, cfg)
        meta.update(checks.json_value(facts, where, cfg.label_key))
    if _empty(label):
        if labels:
            raise DataError(no_label(where, cfg.label_key, columns))
        label = ""
    checks.json_value(label, where, cfg.label_key)
    return Problem(where, given, label if isinstance(label, str) else json.dumps(label, ensure_ascii=False), env, meta)


def no_label(where: str, key: str, columns: str | None = None) -> str:
    """What is said of a row that lacks the label that its reward needs."""
    theirs = f" Its columns: {columns}." if columns else ""
    return (
        f"{where} has no label in column {key!r}.{theirs} Without one no answer can be"
        " rewarded: fill it in, name the column with --data.label_key, or remove the row. Rewards that compare with no"
        " label (env, model, remote, one's own) need none."
    )


def _empty(value: Any) -> bool:
    return value is _MISSING or value is None or value in ([], {}) or (isinstance(value, str) and not value.strip())


def _env_column(row: Mapping[str, Any], where: str, cfg: Data) -> str | None:
    env = row.get(cfg.env_key)
    if env is not None and not isinstance(env, str):
        raise DataError(
            f"{where}: {cfg.env_key} = {shown(env, 60)} is a {type(env).__name__}, no environment's name."
            " Write text, or set data.env_key."
        )
    return checks.text(env, where, cfg.env_key) if env else None


def _meta(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What the environment and the report are told besides: the columns `meta` and `datasource`."""
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
    """The facts of a ZeroTIR label, else None: an ordinary answer may be JSON too ("3", "[1, 2]")."""
    if not isinstance(label, str) or not label.lstrip().startswith("{"):
        return None
    try:
        facts = json.loads(label)
    except (ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) and "gold_ans" in facts else None


def _env_of(env_func: Any, where: str, cfg: Data) -> str | None:
    if env_func is not None and (not isinstance(env_func, str) or env_func not in ENV_FUNCS):
        known = ", ".join(sorted(ENV_FUNCS))
        raise DataError(
            f"{where} has env_func {shown(env_func)} in its label. Known: {known}."
            f" Name the environment in column {cfg.env_key!r} instead."
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
    """Read, render and check every prompt; each distinct one once, and none that an earlier start left in the cache.

    Args:
        tokenizer: A transformers tokenizer; needed for data.apply_chat_template and for the length limit.
        env: The environment of rows that name none.
        templates_of: The environments of the run with the template of each, where there are several: then every row
            names one of them.
        max_prompt_tokens: Longer prompts are dropped and counted (default data.max_len - 1).
        tools_of: For each environment the schemas that the chat template is told of, unless a row has its own
            (meta.chat_tools).
        unlabelled: The environments whose rows need no label.

    Raises:
        ConfigError: A data set, split, column or template is unknown.
        DataError: A row has no input, label or environment, and data.on_bad_row is "error".
    """
    resolved = {name: templates.resolve(given) for name, given in (templates_of or {}).items()}
    template = templates.resolve(cfg.input_template)
    if cfg.apply_chat_template and getattr(tokenizer, "chat_template", None) is None:
        raise ConfigError(
            "data.apply_chat_template is set, but the model's tokenizer has no chat template. Use"
            " --data.input_template, e.g. zerotir."
        )
    limit = cfg.max_len - 1 if max_prompt_tokens is None else max_prompt_tokens
    bad = BadRows(cfg.on_bad_row)
    found = distinct_problems(cfg, bad, labels=not unlabelled)
    made_from = [
        *(found.digest, tokenizer_digest(tokenizer), limit, env, resolved, template, tools_of, sorted(unlabelled)),
        *(cfg.apply_chat_template, cfg.rendered, cfg.chat_template_options, cfg.env_key, cfg.on_bad_row),
    ]
    cacheable = found.digest is not None and made_from[1] is not None
    entry = Entry(cache_directory(cfg.cache_dir) if cacheable else None, "prompts", made_from)
    counts = found.counts()

    def asked(told: BadRows) -> Iterator[_Asked]:
        for place, p in enumerate(found.distinct):
            try:
                name = env_of(p, [*resolved], cfg.env_key) if resolved else p.env or env
                if not p.label and name not in unlabelled:
                    raise DataError(no_label(p.where, cfg.label_key))
                tools = _own_tools(p) or (one(tools_of, name) if tools_of else ())
            except DataError as error:
                told(error, int(counts[place]))
            else:
                yield _Asked(p, name, resolved.get(name, template), tuple(tools), place)

    def rendered(told: BadRows) -> Iterator[tuple[int, Task, int]]:
        for one_asked, outcome in _rendered(asked(told), cfg, tokenizer):
            if isinstance(outcome, DataError):
                told(outcome, int(counts[one_asked.place]))
                continue
            (prompt, chat), p = outcome, one_asked.problem
            task = Task(prompt, p.label, one_asked.env, p.meta, chat=chat, row=row_id(p.input, p.label), extra=p.extra)
            yield one_asked.place, task, p.dataset

    def fitting(told: BadRows) -> Iterator[tuple[int, Task, int, bool]]:
        """Each with whether it fits; without a tokenizer every prompt does."""
        for batch in batched(rendered(told), TOKENISED_AT_ONCE):
            if tokenizer is None:
                yield from ((*one_rendered, True) for one_rendered in batch)
                continue
            short = [task.prompt for _, task, _ in batch if len(task.prompt) <= limit * MAX_TOKEN_CHARS]
            lengths = iter(
                [len(ids) for ids in tokenizer(short, add_special_tokens=False)["input_ids"]] if short else []
            )
            for place, task, dataset in batch:
                whole = len(task.prompt) <= limit * MAX_TOKEN_CHARS
                yield place, task, dataset, whole and next(lengths) <= limit

    prompts = stored_prompts(entry, found, fitting, cfg, bad)
    bad.check_some_good(len(prompts) + prompts.dropped.get(TOO_LONG, 0), cfg.datasets)
    for line in bad.facts():
        log.warning(line)
    return prompts


def _own_tools(p: Problem) -> Sequence[Mapping[str, Any]]:
    """Return the schemas of the row's own tools: meta.chat_tools, or TRL's column `tools`.

    Raises:
        DataError: meta.chat_tools is no list of schemas.
    """
    column = p.extra.get(TOOLS)
    if CHAT_TOOLS not in p.meta and isinstance(column, list) and all(_is_schema(t) for t in column):
        return column
    tools = p.meta.get(CHAT_TOOLS) or []
    if not isinstance(tools, list) or not all(isinstance(t, Mapping) for t in tools):
        raise DataError(
            f"{p.where}: meta.{CHAT_TOOLS} = {shown(tools, 60)} is no list of tool schemas, as OpenAI's."
            " Correct the row."
        )
    return tools


def _is_schema(tool: Any) -> bool:
    return isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping)


TOOLS, TEMPLATE_OPTIONS = "tools", "chat_template_kwargs"
"""Columns of TRL's rows that the chat template is told of: schemas of tools, and its keyword arguments."""
MAX_TOKEN_CHARS = 1024
"""No token of a known vocabulary stands for so many characters: a prompt beyond limit * this is too long without asking
the tokenizer, which would take minutes and gigabytes for a row of many megabytes."""


class _Asked(NamedTuple):
    """What one prompt is rendered from."""

    problem: Problem
    env: str
    template: str | None
    tools: tuple[Mapping[str, Any], ...]
    place: int
    """The problem's place among the distinct ones."""


Rendered = tuple[str, Chat | None] | DataError
CHUNK = 64
"""Prompts that a process of data.dataloader_num_workers is given at once."""
CHUNKS_UNDER_WAY = 4
"""Chunks that are handed out for each of these processes before the first of them is waited for."""
TOKENISED_AT_ONCE = 256
"""Prompts in one call of the tokenizer, whose encodings take some hundred times the text's memory."""


def _rendered(asked: Iterator[_Asked], cfg: Data, tokenizer: Any) -> Iterator[tuple[_Asked, Rendered]]:
    """Each with its prompt, or with what is wrong with it; in order, however many processes render them."""
    if not (cfg.dataloader_num_workers and cfg.apply_chat_template):
        yield from ((one, _try(one, cfg, tokenizer)) for one in asked)
        return
    spawn = get_context("spawn")  # a fork would copy the locks of the driver's threads
    with ProcessPoolExecutor(cfg.dataloader_num_workers, spawn, _receive, (cfg, tokenizer)) as pool:
        # Only so many prompts are under way: submitting all of them would hold all of them.
        under_way: deque[tuple[tuple[_Asked, ...], Future[list[Rendered]]]] = deque()

        def finished() -> Iterator[tuple[_Asked, Rendered]]:
            chunk, future = under_way.popleft()
            return zip(chunk, future.result(), strict=True)

        try:
            for chunk in batched(asked, CHUNK):
                under_way.append((chunk, pool.submit(_try_all, chunk)))
                if len(under_way) > CHUNKS_UNDER_WAY * cfg.dataloader_num_workers:
                    yield from finished()
            while under_way:
                yield from finished()
        except BrokenProcessPool as error:
            raise ConfigError(
                f"A process of data.dataloader_num_workers = {cfg.dataloader_num_workers} has died: of memory, or"
                " because the tokenizer cannot be handed to another process. Lower the number, or leave it out."
            ) from error


def batched(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield tuples of `size` items, the last one of fewer (itertools.batched, which Python 3.11 lacks)."""
    iterator = iter(items)
    while batch := tuple(islice(iterator, size)):
        yield batch


_RECEIVED: list[Any] = []
"""What a rendering process was sent: the configuration and the tokenizer, once, since reading a large tokenizer takes
longer than hundreds of prompts."""


def _receive(cfg: Data, tokenizer: Any) -> None:
    _RECEIVED[:] = cfg, tokenizer


def _try_all(chunk: Sequence[_Asked]) -> list[Rendered]:
    return [_try(one, *_RECEIVED) for one in chunk]


def _try(one: _Asked, cfg: Data, tokenizer: Any) -> Rendered:
    try:
        return _render(one.problem, cfg, one.template, tokenizer, one.tools)
    except DataError as error:
        return error


def render_text(p: Problem, template: str | None, tokenizer: Any = None, *, is_rendered: bool = False) -> str:
    """Return a run's prompt without chat template.

    With a tokenizer, special tokens in the row's text are inert, and the prompt begins with the token that the
    tokenizer puts before every text, if it has one: base models were trained with it. A text that a chat template has
    rendered (`is_rendered`, data.rendered) has both already and stays as it is.

    Raises:
        DataError: The input is no text and has no user message.
    """
    text = p.input if isinstance(p.input, str) else _last_user_text(p, template)
    columns = templates.texts_of(template, p.extra, p.where)
    if tokenizer is None or is_rendered:
        return templates.render(template, text, columns)
    specials = specials_of(tokenizer)
    columns = {name: marked(value, specials) for name, value in columns.items()}
    prompt = templates.render(template, marked(text, specials), columns)
    bos = bos_of(tokenizer)
    return prompt if prompt.startswith(bos) else bos + prompt


def _render(
    p: Problem, cfg: Data, template: str | None, tokenizer: Any, tools: tuple[Mapping[str, Any], ...]
) -> tuple[str, Chat | None]:
    """The prompt, and its messages where a chat template rendered them."""
    if not cfg.apply_chat_template:
        return render_text(p, template, tokenizer, is_rendered=cfg.rendered), None
    if isinstance(p.input, str):
        asked = templates.render(template, p.input, templates.texts_of(template, p.extra, p.where))
        chat = [{"role": "user", "content": asked}]
    else:
        chat = p.input
    specials = specials_of(tokenizer)
    given = template_of(tokenizer) or ""
    # A model that an earlier run exported asks that run's question; this run has a data.input_template of its own.
    own = {} if without_question(given) == given else {"chat_template": without_question(given)}
    options = p.extra.get(TEMPLATE_OPTIONS)
    options = options if isinstance(options, Mapping) else {}
    more = {**({"tools": marked_in(tools, specials)} if tools else {}), **cfg.chat_template_options, **options, **own}
    try:
        shown = marked_in(chat, specials)
        text = str(tokenizer.apply_chat_template(shown, tokenize=False, add_generation_prompt=True, **more))
    except Exception as error:
        # the template is a program of the model's: it raises what it likes, mostly about the order of roles
        raise DataError(
            f"{p.where}: the model's chat template refuses the chat in {cfg.input_key!r}: {type(error).__name__}:"
            f" {shorten(str(error))}. Correct the messages, or use --data.input_template without"
            " --data.apply_chat_template."
        ) from None
    if lost := lost_in_context(chat, text):
        raise DataError(
            f"{p.where}: the model's chat template leaves out a part of the chat in {cfg.input_key!r}: {lost}. Write it"
            " into a message's content, set data.chat_template_options so that it is kept, or remove the row."
        )
    return text, Chat(tuple(chat), tools, of_text=isinstance(p.input, str))


def _last_user_text(p: Problem, template: str | None) -> str:
    """What a text template asks of a chat: its last user message, as ToRL does with verl's rows."""
    messages = p.input if isinstance(p.input, list) else []
    texts = [
        m["content"]
        for m in messages
        if isinstance(m, Mapping) and m.get("role") == "user" and isinstance(m.get("content"), str)
    ]
    if template is None or not texts:
        raise DataError(
            f"{p.where} has a {type(p.input).__name__} as its input, not text. "
            "Set --data.apply_chat_template for chats, or --data.input_template to use the last user message."
        )
    return texts[-1]
