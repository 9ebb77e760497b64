"""Rows of fine-tuning: what the model wrote is learned, and nothing else is. Texts are read back from tokens."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from datetime import datetime

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.data import chat_template, lost_parts
from openrlhf_tir.data.chat_template import ChatTemplate, special_texts
from openrlhf_tir.data.jinja_template import of_text
from openrlhf_tir.data.lost_parts import lost_in_context
from openrlhf_tir.data.sft import chat
from openrlhf_tir.data.sft.chat import chains_of
from openrlhf_tir.data.sft.pieces import Reader
from openrlhf_tir.data.sft.read import load_set
from openrlhf_tir.data.sft.tokens import END, Vocabulary, tokenised
from openrlhf_tir.engines.codec import HfCodec
from openrlhf_tir.errors import ConfigError, DataError
from openrlhf_tir.protocol import PYTHON_TOOL
from tests.data.make_samples import rows as samples
from tests.unit.data.test_data_prompts import jsonl
from tests.unit.rollout.protocols.chat_models import tokenizer

ASKED, SAID = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "It is 4."}
CALLED = [
    ASKED,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "python", "arguments": {"code": "print(2+2)"}}}],
    },
    {"role": "tool", "content": "4"},
    SAID,
]
THOUGHT = [
    ASKED,
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 4."},
    {"role": "user", "content": "Sure?"},
    SAID,
]


def vocabulary(model="qwen2_5") -> Vocabulary:
    t = tokenizer(model)
    return Vocabulary(HfCodec(t), {s: t.convert_tokens_to_ids(s) for s in special_texts(t)}, t.eos_token_id)


def read(row, model="qwen2_5", **sft) -> list[tuple[str, str]]:
    """(all of the text, what of it is learned) of each chain, learned runs apart by ¦."""
    words, out = vocabulary(model), []
    for chain in Reader(Config(sft=sft).sft, ChatTemplate.of(tokenizer(model), {}))("d.jsonl line 1", row):
        ids, weights = tokenised(chain, words)
        runs = [[]]
        for i, w in zip(ids, weights, strict=True):
            if w:
                runs[-1].append(i)
            elif runs[-1]:
                runs.append([])
        out.append((words.codec.spell(ids), "¦".join(words.codec.spell(r) for r in runs if r)))
    return out


def said(row, model="qwen2_5", **sft) -> str:
    ((_, learned),) = read(row, model, **sft)
    return learned


def test_every_message_of_the_assistant_is_learned_with_its_end_and_replies_of_tools_are_not():
    ((text, learned),) = read({"messages": CALLED, "tools": [PYTHON_TOOL]})
    assert text.count("<|im_end|>") == 5 and "# Tools" in text and "<tool_response>\n4\n</tool_response>" in text
    call, answer = learned.split("¦")
    assert (
        call.strip().startswith("<tool_call>")
        and call.endswith("</tool_call><|im_end|>")
        and answer == "It is 4.<|im_end|>"
    )


def test_tools_may_be_json_text_and_change_the_prompt_only():
    one, other = (
        read({"messages": [ASKED, SAID], "tools": t})[0]
        for t in ('[{"type": "function", "function": {"name": "f"}}]', None)
    )
    assert one[1] == other[1] == "It is 4.<|im_end|>" and '"name": "f"' in one[0] and '"name": "f"' not in other[0]


@pytest.mark.parametrize("chat", [False, True])
def test_a_template_may_name_other_columns_of_the_row(chat):
    row = {"prompt": "2+2?", "response": "4", "level": "<|im_end|>easy"}
    ((text, learned),) = read(row, input_template="{level}: {}", apply_chat_template=chat)
    assert "easy: 2+2?" in text and learned.startswith("4") and text.count("<|im_end|>easy") == 1
    with pytest.raises(DataError, match="'level'"):
        read({"prompt": "2+2?", "response": "4"}, input_template="{level}: {}", apply_chat_template=chat)


@pytest.mark.parametrize("chat", [False, True])
def test_the_text_of_a_special_token_in_another_column_is_text(chat):
    words, ends = vocabulary(), []
    for level in ("easy", "<|im_end|>easy"):
        cfg = Config(sft={"input_template": "{level}: {}", "apply_chat_template": chat}).sft
        row = {"prompt": "2+2?", "response": "4", "level": level}
        reader = Reader(cfg, ChatTemplate.of(tokenizer("qwen2_5"), {}), "", tuple(words.specials))
        (chain,) = reader("d.jsonl line 1", row)
        ids, _ = tokenised(chain, words)
        ends.append(list(ids).count(words.specials["<|im_end|>"]))
    assert ends[0] == ends[1] > 0


def test_of_one_turn_only_the_last_message_is_learned():
    assert said({"messages": CALLED}, multiturn=False) == "It is 4.<|im_end|>"


def test_an_empty_message_is_refused_where_it_would_be_learned():
    empty = {"role": "assistant", "content": ""}
    with pytest.raises(DataError, match=r"messages\[1\]"):
        read({"messages": [ASKED, empty, ASKED, SAID]})
    assert said({"messages": [ASKED, empty, ASKED, SAID]}, multiturn=False) == "It is 4.<|im_end|>"


def test_what_an_interpreter_wrote_inside_of_a_message_is_read_and_not_learned():
    row = samples()["retool_sft.jsonl"][0]
    ((text, learned),) = read(row)
    answer = row["messages"][-1]["content"]
    head, _, rest = answer.partition("\n<interpreter>")
    assert answer in text and learned == f"{head}¦{rest.partition('</interpreter>')[2].strip()}<|im_end|>"


def test_between_two_blocks_the_model_speaks():
    content = "<code>1</code>\n<interpreter>1</interpreter>\nHm.\n<interpreter>2</interpreter>\nIt is 2."
    assert (
        said({"messages": [ASKED, {"role": "assistant", "content": content}]})
        == "<code>1</code>¦Hm.¦It is 2.<|im_end|>"
    )


def test_a_template_that_writes_no_generation_prompt_of_the_assistants_is_refused():
    """Else words of the template would be learned as the model's, or words of the model cut."""

    def apply(messages, *, add_generation_prompt, **_):
        return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages) + (
            "<|im_start|>model\n" if add_generation_prompt else ""
        )

    template = ChatTemplate(apply, ["<|im_start|>", "<|im_end|>"])
    with pytest.raises(
        DataError,
        match=r"messages\[1\].*data\.chat_template_options",
    ):
        Reader(Config().sft, template)("d line 1", {"messages": [ASKED, SAID]})


def test_without_blocks_everything_that_the_assistant_says_is_learned():
    row = samples()["retool_sft.jsonl"][0]
    assert said(row, mask_blocks=[]) == row["messages"][-1]["content"] + "<|im_end|>"


def test_a_block_that_does_not_end_is_refused_since_the_rest_would_be_learned():
    with pytest.raises(DataError, match=r"line 1: messages\[1\]: <interpreter>.*</interpreter>"):
        read({"messages": [ASKED, {"role": "assistant", "content": "<code>x</code>\n<interpreter>\n4 It is 4."}]})


def test_a_template_that_renders_earlier_messages_otherwise_makes_several_chains():
    """Qwen3 leaves the thinking of earlier messages out: the second chain shows the first message without it, and
    learns the second only."""
    (first, one), (second, two) = read({"messages": THOUGHT}, "qwen3")
    assert one == "<think>\nhm\n</think>\n\nIt is 4.<|im_end|>" and "hm" in first
    assert (
        "hm" not in second
        and "It is 4.<|im_end|>\n<|im_start|>user\nSure?" in second
        and two.endswith("It is 4.<|im_end|>")
        and "Sure" not in two
    )


@pytest.mark.parametrize("model", ["llama3", "qwen2_5", "mistral_v1"])
def test_one_chain_holds_a_conversation_whose_template_adds_at_its_end(model):
    end = {"llama3": "<|eot_id|>", "qwen2_5": "<|im_end|>", "mistral_v1": "</s>"}[model]
    turns = [ASKED, SAID, {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}]
    first, second = said({"messages": turns}, model).split("¦")
    assert (first.strip(), second.strip()) == (f"It is 4.{end}", f"Yes.{end}")


@pytest.mark.parametrize("at", ["user", "assistant", "tools", "prompt", "response"])
def test_a_special_token_in_a_rows_text_is_its_characters(at):
    words = vocabulary()
    text = "what is <|im_end|>?"
    messages = [{"role": "user", "content": text if at == "user" else "hm"}, SAID]
    if at == "assistant":
        messages[1] = {"role": "assistant", "content": text}
    tools = [{**PYTHON_TOOL, "function": {**PYTHON_TOOL["function"], "description": text}}] if at == "tools" else []
    row = {"messages": messages, "tools": tools}
    if at in ("prompt", "response"):
        row = {"prompt": "hm", "response": "hm", at: text}
    (chain,) = Reader(Config(sft={}).sft, ChatTemplate.of(tokenizer("qwen2_5"), {}), "", tuple(words.specials))(
        "d", row
    )
    ids = tokenised(chain, words).token_ids.tolist()
    plain_row = json.loads(json.dumps(row).replace("<|im_end|>", "[im_end]"))
    (other,) = Reader(Config(sft={}).sft, ChatTemplate.of(tokenizer("qwen2_5"), {}))("d", plain_row)
    end = words.specials["<|im_end|>"]
    assert ids.count(end) == tokenised(other, words).token_ids.tolist().count(end)
    assert "what is <|im_end|>?" in words.codec.spell(ids)


DROPS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{% endfor %}"
DROPS += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CUTS = DROPS.replace("m.content or ''", "(m.content or '').split('</think>')[-1]")
NO_TOOL_ROLE = DROPS.replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}")
NO_END = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n{% endfor %}"
NO_END += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def chains(template, messages, notes=None, **how):
    made = ChatTemplate(of_text(template, {}), ["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    notes = Counter() if notes is None else notes
    return chains_of("d.jsonl line 1", messages, [], made, every=True, masked=[], notes=notes)


@pytest.mark.parametrize(
    ("template", "messages"),
    [
        (DROPS, CALLED),
        (DROPS, [*CALLED[:2]]),
        (CUTS, [ASKED, THOUGHT[1]]),
        (CUTS, [ASKED, {**SAID, "reasoning_content": "Two and two."}]),
        (NO_TOOL_ROLE, [ASKED, SAID, {"role": "tool", "content": "seven"}, SAID]),
    ],
    ids=["calls", "calls of the last message", "thoughts in the content", "thoughts in a field", "a tool's words"],
)
def test_what_the_template_drops_is_refused_and_not_learned_as_an_empty_message(template, messages):
    with pytest.raises(DataError):
        chains(template, messages)


TURNS = [turn for i in range(20) for turn in ({"role": "user", "content": f"{i}+2?"}, {**SAID, "content": f"{i}!"})]


@pytest.mark.parametrize("template", [DROPS, NO_END], ids=["one chain", "a chain for each message"])
def test_a_message_of_the_context_is_looked_for_once_where_its_text_stays_as_it_is(template, monkeypatch):
    looked_for = []

    def spied(messages, rendered, *, first=0):
        looked_for.extend(range(first, first + len(messages)))
        return lost_in_context(messages, rendered, first=first)

    monkeypatch.setattr(chat, "lost_in_context", spied)
    chains(template, TURNS)
    # What was learned was looked for when it was learned.
    assert looked_for == list(range(0, len(TURNS), 2))


def test_messages_that_are_rendered_in_another_way_later_are_looked_for_again():
    first_only = "{% for m in messages if messages|length < 5 or m.content != 'It is 4.' %}"
    forgets = DROPS.replace("{% for m in messages %}", first_only)
    assert len(chains(forgets, [ASKED, SAID])) == 1
    with pytest.raises(DataError, match=r"messages\[1\]"):
        chains(forgets, [ASKED, SAID, ASKED, {**SAID, "content": "Yes."}, ASKED, {**SAID, "content": "No."}])


def test_a_message_that_is_missing_is_told_by_its_number_in_the_whole_conversation():
    with pytest.raises(DataError, match=r"messages\[4\]"):
        chains(NO_TOOL_ROLE, [*TURNS[:4], {"role": "tool", "content": "seven"}, SAID])


def test_the_white_space_of_a_rendered_text_is_taken_out_once_for_all_messages(monkeypatch):
    rendered, whole = "".join(m["content"] for m in TURNS), []
    bare = lost_parts._bare
    monkeypatch.setattr(lost_parts, "_bare", lambda text: whole.append(text == rendered) or bare(text))
    assert lost_in_context(TURNS, rendered) is None
    assert lost_parts.lost_in_response({**CALLED[1], "reasoning": "0+2?", "content": "0!"}, rendered) is not None
    assert sum(whole) == 2


def test_thoughts_in_a_field_are_written_out_where_the_template_keeps_them_in_the_content():
    notes = Counter()
    (chain,) = chains(DROPS, [ASKED, {**SAID, "reasoning_content": "Two and two."}], notes)
    assert chain[-1].text == "<think>\nTwo and two.\n</think>\n\nIt is 4.<|im_end|>"
    assert list(notes.values()) == [1]


def test_where_the_template_writes_no_end_the_tokenizers_own_is_learned_behind_every_message():
    notes = Counter()
    first, second = chains(
        NO_END, [ASKED, SAID, {"role": "user", "content": "Sure?"}, {**SAID, "content": "Yes."}], notes
    )
    assert [(p.text, p.end) for p in first[1:]] == [("It is 4.", ""), ("", END)]
    assert [(p.text, p.end) for p in second[1:]] == [("Yes.", ""), ("", END)]
    assert "It is 4." in second[0].text and list(notes.values()) == [2]
    words = vocabulary()
    row = tokenised(first, words)
    assert row.token_ids[-1] == words.eos and row.weights[-1] == 1.0


def test_a_base_models_texts_begin_with_the_token_that_its_tokenizer_puts_there():
    def begun(row):
        (chain,) = Reader(Config(sft={}).sft, None, "<s>")("d", row)
        return [p.text for p in chain if p.text], chain[0].author

    assert begun({"text": "Four."}) == (["<s>", "Four."], "template")
    assert begun({"prompt": "2+2?", "response": "4"}) == (["<s>", "2+2?", "4"], "template")
    assert begun({"prompt": "<s>2+2?", "segments": [{"source": "model", "text": "4"}]})[0] == ["<s>2+2?", "4"]


def test_a_response_is_learned_with_an_end_of_text_behind_a_prompt_in_the_template():
    row = {"prompt": "2+2?", "response": "4"}
    assert read(row, input_template="Q: {}\nA:")[0][0] == f"Q: 2+2?\nA:4{tokenizer('qwen2_5').eos_token}"
    assert said(row) == "4" + tokenizer("qwen2_5").eos_token
    assert said(row, append_eos=False) == "4"
    assert said({"q": "2+2?", "a": "4"}, input_key="q", output_key="a", append_eos=False) == "4"
    assert said(row, apply_chat_template=True) == "4<|im_end|>"


def test_all_of_a_text_is_learned():
    assert said({"text": "Four is two and two."}, append_eos=False) == "Four is two and two."


def test_of_a_kept_trajectory_who_wrote_it_is_the_mask_and_a_tools_special_tokens_are_text():
    segments = [
        {"source": "model", "text": "<code>print(4)</code>", "end": ""},
        {"source": "env", "text": "\n<interpreter>\n<|im_end|>4</interpreter>\n\n"},
        {"source": "model", "text": "4", "end": "<|im_end|>"},
    ]
    row = {"prompt": "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n", "segments": segments}
    ((_, learned),) = read(row)
    assert learned == "<code>print(4)</code>¦4<|im_end|>"
    ids, _ = tokenised(Reader(Config().sft, None)("d", row)[0], vocabulary())
    assert list(ids).count(vocabulary().specials["<|im_end|>"]) == 2  # the prompt's and the model's own


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"question": "2+2?"},
            r"line 1 .*messages, prompt, text.*question.*sft\.input_key",
        ),
        ({"messages": [ASKED]}, "line 1: .*1 "),
        ({"messages": [{"role": "user"}]}, r"messages\[0\] ="),
        ({"messages": [ASKED, SAID], "tools": "[{"}, "line 1: tools.*JSON"),
        ({"prompt": "2+2?"}, "line 1 .*'response'"),
        ({"prompt": "2+2?", "response": 4}, r"line 1: response.*4 \(int\)"),
        ({"prompt": "2+2?", "segments": [{"source": "tool", "text": "4"}]}, r"segments\[0\]"),
        ({"text": "\ud800"}, r"line 1: .*\\ud800.* 1\b"),
    ],
)
def test_a_bad_row_is_told_with_line_field_and_value(row, message):
    with pytest.raises(DataError, match=message):
        read(row)


def test_a_chat_without_a_chat_template_is_refused_before_a_model_is_loaded():
    with pytest.raises(ConfigError, match=r"line 1 .*chat_template\.jinja"):
        Reader(Config().sft, None)("d line 1", {"messages": [ASKED, SAID]})


def load(source, **sections):
    cfg = Config(**{**sections, "sft": {"dataset": source, **sections.get("sft", {})}})
    return load_set(cfg, vocabulary(), ChatTemplate.of(tokenizer("qwen2_5"), {}))


def test_rows_that_are_too_long_are_left_out_and_counted(tmp_path):
    path = jsonl(tmp_path / "d.jsonl", [{"text": "a b"}, {"text": "a b " * 200}])
    found = load(path, sft={"max_len": 64})
    assert len(found.rows) == 1
    assert re.search(r"1.*sft\.max_len = 64", "\n".join(found.facts("d", 64)))
    with pytest.raises(DataError, match=r"2\).*sft\.max_len = 2"):
        load(path, sft={"max_len": 2})


def test_the_first_token_of_a_text_is_not_learned_so_one_token_teaches_nothing(tmp_path):
    found = load(jsonl(tmp_path / "d.jsonl", [{"text": "a"}, {"text": "ab"}]), sft={"append_eos": False})
    assert [row.trained for row in found.rows] == [1] and found.counts["nothing_learned"] == 1


def test_no_more_rows_of_a_data_set_are_read_than_asked_for(tmp_path):
    path = jsonl(tmp_path / "d.jsonl", [{"text": f"row {i}"} for i in range(5)])
    assert len(load(f"{path},{path}", data={"max_samples": 3}).rows) == 6


def test_a_bad_row_refuses_the_data_or_is_left_out_and_listed(tmp_path):
    path = jsonl(tmp_path / "d.jsonl", [{"text": "ab"}, {"txt": "ab"}, {"text": 4}])
    with pytest.raises(DataError) as e:
        load(path)
    first, second, last = str(e.value).splitlines()
    assert re.search(r"d\.jsonl line 2 ", first) and re.search(r"d\.jsonl line 3: text.*4 \(int\)", second), (
        "all of them at once"
    )
    assert last == "2 bad rows. Correct them, or leave them out: --data.on_bad_row skip."
    found = load(path, data={"on_bad_row": "skip"})
    assert len(found.rows) == 1 and any("d.jsonl line 2" in line for line in found.said)


def test_data_that_are_not_there_are_told_by_the_setting_of_fine_tuning():
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl.*sft\.dataset"):
        load("nowhere.jsonl")


def test_the_digest_tells_other_rows_and_another_order(tmp_path):
    a, b = {"text": "one"}, {"text": "two"}
    digests = {
        load(jsonl(tmp_path / f"{i}.jsonl", rows)).digest for i, rows in enumerate([[a, b], [b, a], [a], [a, b]])
    }
    assert len(digests) == 3


def test_the_digest_tells_another_mask_of_the_same_tokens(tmp_path):
    chat = {"messages": [ASKED, {"role": "assistant", "content": "7"}, ASKED, SAID]}
    path = jsonl(tmp_path / "d.jsonl", [chat])
    all_of_it, the_last = load(path), load(path, sft={"multiturn": False})
    assert (
        all_of_it.rows[0].token_ids.tolist() == the_last.rows[0].token_ids.tolist()
        and all_of_it.digest != the_last.digest
    )


def test_an_end_that_the_tokenizer_does_not_have_is_refused_and_left_out_on_request():
    words = vocabulary()
    endless = Vocabulary(words.codec, {}, None)
    chains = {
        on: Reader(Config(sft={"append_eos": on}).sft, None)("d.jsonl line 1", {"prompt": "2+2?", "response": "4"})
        for on in (True, False)
    }
    with pytest.raises(ConfigError, match=r"sft\.append_eos"):
        tokenised(chains[True][0], endless)
    assert tokenised(chains[False][0], endless).trained == 1


def test_a_row_without_a_column_is_told_of_the_settings_that_fine_tuning_has(tmp_path):
    path = jsonl(tmp_path / "d.jsonl", [{"prompt": "1+1?", "label": "2"}])
    with pytest.raises(DataError, match=r"'response'.*sft.input_key.*sft.output_key"):
        load(path)


def test_toolrls_rows_of_instruction_input_and_output_are_chats_of_three_messages():
    row = {"instruction": "Tools.", "input": "Ask.", "output": "Told."}
    chat = {"messages": [{"role": "system", "content": "Tools."}, {"role": "user", "content": "Ask."}]}
    chat["messages"].append({"role": "assistant", "content": "Told."})
    assert read(row) == read(chat)
    assert read(row | {"input": ""}) == read({"messages": [{"role": "user", "content": "Tools."}, chat["messages"][2]]})


def test_words_behind_the_end_of_a_message_are_the_templates():
    template = DROPS.replace("<|im_end|>\n", "<|im_end|>\n-----\n")
    (chain,) = chains(template, [ASKED, SAID, ASKED, SAID])
    assert [p.text for p in chain if p.author == "model"] == ["It is 4.<|im_end|>"] * 2


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "print(2+2)", "tool_calls": CALLED[1]["tool_calls"]},
        {"role": "assistant", "content": "4", "tool_calls": []},
    ],
    ids=["a call", "an answer"],
)
def test_a_part_that_is_left_out_is_missed_though_the_question_has_the_same_words(message):
    asked = {"role": "user", "content": "Call python with code print(2+2). Answer 4."}
    silent = DROPS.replace("{{ m.content or '' }}", "{{ m.content if m.role == 'user' else 'hm' }}")
    with pytest.raises(DataError):
        chains(silent, [asked, message])


def test_tools_that_the_template_does_not_show_are_missed():
    def read_tools(template, question):
        made = ChatTemplate(of_text(template, {}), ["<|im_start|>", "<|im_end|>"])
        messages = [{"role": "user", "content": question}, SAID]
        return chains_of("d", messages, [PYTHON_TOOL], made, every=True, masked=[], notes=Counter())

    assert read_tools("{{ tools }}" + DROPS, "2+2?") and read_tools(DROPS, "2+2? You have the tool python.")
    with pytest.raises(DataError):
        read_tools(DROPS, "2+2?")


def test_a_template_that_writes_the_date_gives_the_same_digest_on_every_day(tmp_path, monkeypatch):
    dated = copy.deepcopy(tokenizer("qwen2_5"))
    dated.chat_template = "{{ strftime_now('%d %B %Y') }}" + DROPS
    path = jsonl(tmp_path / "d.jsonl", [{"messages": [ASKED, SAID]}])
    other = jsonl(tmp_path / "other.jsonl", [{"messages": [ASKED, {**SAID, "content": "It is 5."}]}])

    def on(day, file):
        monkeypatch.setattr(chat_template, "_first_rendering", lambda: day)
        return load_set(Config(sft={"dataset": file}), vocabulary(), ChatTemplate.of(dated, {}))

    first, second = on(datetime(2026, 1, 9), path), on(datetime(2026, 1, 10), path)
    assert first.rows[0].token_ids.tolist() != second.rows[0].token_ids.tolist()
    assert first.digest == second.digest != on(datetime(2026, 1, 9), other).digest


@pytest.mark.parametrize("multiturn", [True, False])
def test_a_short_reply_that_is_left_out_is_missed_though_other_messages_have_its_letters(multiturn):
    asked = {"role": "user", "content": "Is 2+2 equal to 4?"}
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "is", "arguments": {"2": "4"}}}]}
    reply = {"role": "tool", "content": "4"}

    def learned(template, messages):
        made = ChatTemplate(of_text(template, {}), ["<|im_start|>", "<|im_end|>"])
        return chains_of("d", messages, [], made, every=multiturn, masked=[], notes=Counter())

    assert learned(DROPS, [asked, SAID, reply, SAID])
    for template, messages in ((NO_TOOL_ROLE, [asked, SAID, reply, SAID]), (DROPS, [asked, call, reply, SAID])):
        with pytest.raises(DataError):
            learned(template, messages)


def test_the_renderings_of_a_conversation_grow_with_its_messages_though_each_turn_is_rendered_anew():
    def renderings(turns):
        count = 0

        def apply(messages, **options):
            nonlocal count
            count += 1
            earlier = (len(messages) - (not options["add_generation_prompt"])) // 2
            return str(earlier) + "".join(f"{m['role']}{m['content']}<|im_end|>" for m in messages)

        made = ChatTemplate(apply, ["<|im_end|>"])
        chains_of("d", [ASKED, {**SAID, "content": "4"}] * turns, [], made, every=True, masked=[], notes=Counter())
        return count

    assert renderings(16) - renderings(8) == renderings(24) - renderings(16)


def test_of_a_row_whose_template_writes_the_date_only_the_piece_with_it_is_tokenised_twice(tmp_path):
    class Counting(HfCodec):
        encoded = 0

        def encode(self, text):
            self.encoded += 1
            return super().encode(text)

        def encode_prompt(self, text):
            self.encoded += 1
            return super().encode_prompt(text)

        def encode_rendered(self, text):
            self.encoded += 1
            return super().encode_rendered(text)

    def pieces_encoded(date):
        t = tokenizer("qwen2_5")
        words = Vocabulary(Counting(t), {s: t.convert_tokens_to_ids(s) for s in special_texts(t)}, t.eos_token_id)
        template = ChatTemplate.of(t, {"chat_template": date + t.chat_template})
        load_set(Config(sft={"dataset": path}), words, template)
        return words.codec.encoded

    path = jsonl(tmp_path / "d.jsonl", [{"messages": [ASKED, SAID, ASKED, SAID]}] * 3)
    assert pieces_encoded("{{ strftime_now('%d %b') }}") == pieces_encoded("") + 3
