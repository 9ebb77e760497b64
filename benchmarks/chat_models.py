r"""Chat models: the chat templates of model families, each tried with what this trainer does with it.

    python -m benchmarks.chat_models --trl trl-1.16.0-py3-none-any.whl --llama llama_cpp_python-0.3.36.tar.gz

makes the table of docs/models.md anew. Templates are programs of the models' makers and not part of this package: they
are read from the two archives, which `pip download` fetches, and are neither installed nor imported. Imitations, by
hand, are in tests/data/chat_templates.

Each template is rendered without its tokenizer: the texts that look like tokens of the template count as its special
tokens, and bos and eos are called <BOS> and <EOS>.
"""

from __future__ import annotations

import argparse
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from openrlhf_tir.data.chat_template import ChatTemplate, TemplateRefuses
from openrlhf_tir.data.jinja_template import of_text
from openrlhf_tir.data.lost_parts import lost_in_context
from openrlhf_tir.data.sft.chat import NO_END, THOUGHTS, chains_of
from openrlhf_tir.data.template_check import check_template
from openrlhf_tir.errors import ConfigError, DataError
from openrlhf_tir.pipeline.checkpoints.lineage import data_facts
from openrlhf_tir.protocol import PYTHON_TOOL
from openrlhf_tir.types import Chat, Task

REPO = Path(__file__).resolve().parents[1]
PAGE = REPO / "docs" / "models.md"
IMITATIONS = REPO / "tests" / "data" / "chat_templates"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
IMITATED = "imitated"
TRL, LLAMA = "trl", "llama_cpp_python"
VERSIONS = {TRL: "1.16.0", LLAMA: "0.3.36"}
FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("Qwen2.5", TRL, "qwen2_5"),
    ("Qwen3", TRL, "qwen3"),
    ("Qwen3-Instruct-2507", TRL, "qwen3_instruct_2507"),
    ("Qwen3.5", TRL, "qwen3_5_think"),
    ("Qwen3-Coder", LLAMA, "Qwen3-Coder"),
    ("QwQ", LLAMA, "Qwen-QwQ-32B"),
    ("Llama 2", IMITATED, "llama2"),
    ("Llama 3", TRL, "llama3"),
    ("Llama 3.1", TRL, "llama3_1"),
    ("Llama 3.2", TRL, "llama3_2"),
    ("Llama 3.3", LLAMA, "meta-llama-Llama-3.3-70B-Instruct"),
    ("Gemma, Gemma 2", TRL, "gemma"),
    ("Gemma 3", TRL, "gemma3"),
    ("Gemma 4", TRL, "gemma4"),
    ("Mistral 7B v0.1", IMITATED, "mistral_v1"),
    ("Mistral Nemo", LLAMA, "mistralai-Mistral-Nemo-Instruct-2407"),
    ("Mistral Small 3.2", LLAMA, "Mistral-Small-3.2-24B-Instruct-2506"),
    ("Ministral 3", LLAMA, "mistralai-Ministral-3-14B-Reasoning-2512"),
    ("Devstral", LLAMA, "unsloth-mistral-Devstral-Small-2507"),
    ("DeepSeek-V3", TRL, "deepseekv3"),
    ("DeepSeek-R1-Distill", TRL, "deepseek_r1_distill"),
    ("DeepSeek-V3.1", LLAMA, "deepseek-ai-DeepSeek-V3.1"),
    ("DeepSeek-V3.2", LLAMA, "deepseek-ai-DeepSeek-V3.2"),
    ("GLM-4.5", TRL, "glm4moe"),
    ("GLM-4.6", LLAMA, "GLM-4.6"),
    ("Kimi-K2", LLAMA, "Kimi-K2-Instruct"),
    ("gpt-oss", TRL, "gptoss"),
    ("Phi-3", TRL, "phi3"),
    ("Phi-3.5", TRL, "phi3_5"),
    ("SmolLM3", LLAMA, "HuggingFaceTB-SmolLM3-3B"),
    ("LFM2", TRL, "lfm2"),
    ("Granite 3.3", LLAMA, "ibm-granite-granite-3.3-2B-Instruct"),
    ("Granite 4", LLAMA, "ibm-granite-granite-4.0"),
    ("Nemotron 3 Nano", TRL, "nemotron_3_nano"),
    ("Command R7B", LLAMA, "CohereForAI-c4ai-command-r7b-12-2024-tool_use"),
    ("MiniMax-M2", LLAMA, "MiniMax-M2"),
    ("Seed-OSS", LLAMA, "ByteDance-Seed-OSS"),
    ("Hermes 3", LLAMA, "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"),
    ("Solar Open", LLAMA, "upstage-Solar-Open-100B"),
)
"""(family, where its template is from, name of the file without .jinja)."""

_TOKEN = re.compile(
    r"<\|?[\w|\"/:▁-]{1,40}\|?>|<｜[^｜>]{1,40}｜>|</?(?:s|turn|start_of_turn|end_of_turn|seed:\w+)>|\[/?[A-Z_]{3,20}\]"
    r"|\[e~\[|\]~!?b\[?\]?"
)
_ORDINARY = re.compile(
    r"</?(?:think|tool_call|tool_calls|tool_response|tools|tool|function|parameter|arg_\w+|invoke)\b"
)

ASKED: dict[str, Any] = {"role": "user", "content": "How much is six times seven?"}
SAID = {"role": "assistant", "content": "It is 42."}
AGAIN = {"role": "user", "content": "Are you sure?"}
SURE = {"role": "assistant", "content": "Quite sure."}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "python", "arguments": {"code": "print(6*7)"}},
        }
    ],
}
RESULT = {"role": "tool", "name": "python", "tool_call_id": "call00001", "content": "The tool says 42."}
REPLY = {"role": "tool", "name": "python", "content": "A reply."}
THOUGHT = {**SAID, "reasoning_content": "Six sevens."}


class Row(NamedTuple):
    """A line of the table: what was seen, column by column."""

    family: str
    system: str
    call: str
    result: str
    thinking: str
    resume: str
    sft: str
    bos: str
    end: str
    source: str


HEADS = Row("family", "system message", "call", "tool result", "thinking", "resume", "SFT", "BOS", "end", "template")


def template_of(text: str, day: int = 1) -> ChatTemplate:
    """Return a template as the trainer uses it, on a day of January."""
    specials = sorted({"<BOS>", "<EOS>", *(t for t in _TOKEN.findall(text) if not _ORDINARY.match(t) and len(t) > 2)})
    names = {"bos_token": "<BOS>", "eos_token": "<EOS>", "pad_token": "<EOS>", "unk_token": "<UNK>"}
    render = of_text(text, names)

    def apply(messages: Sequence[Mapping[str, Any]], **how: Any) -> str:
        return render(messages, strftime_now=datetime(2026, 1, day).strftime, **how)

    return ChatTemplate(apply, specials)


def tried(family: str, text: str, source: str) -> Row:
    """Try one template with everything that the table tells."""
    template = template_of(text)
    notes: Counter[str] = Counter()
    sft, end = _sft(template, notes)
    return Row(
        family,
        system=_system(template),
        call=_call(template),
        result=_result(template),
        thinking=_thinking(template),
        resume=_resume(text),
        sft=sft,
        bos=_bos(template),
        end=end,
        source=source,
    )


def _bos(template: ChatTemplate) -> str:
    try:
        return "yes" if template.render([ASKED], [PYTHON_TOOL]).startswith("<BOS>") else "no"
    except TemplateRefuses:
        return "refused"


def _system(template: ChatTemplate) -> str:
    system = {"role": "system", "content": "Answer shortly, please."}
    try:
        lost = lost_in_context([system, ASKED], template.render([system, ASKED]))
    except TemplateRefuses:
        return "refused"
    return "left out: refused" if lost else "yes"


def _call(template: ChatTemplate) -> str:
    messages: list[dict[str, Any]] = [ASKED, CALL, RESULT]
    try:
        rendered = template.render(messages, [PYTHON_TOOL])
    except TemplateRefuses:
        return "refused"
    return "left out: refused" if lost_in_context(messages[:2], rendered) else "yes"


def _result(template: ChatTemplate) -> str:
    for reply, name in (REPLY, "tool"), ({"role": "user", "content": "A reply."}, 'role = "user"'):
        try:
            checked = check_template(template, [reply], [PYTHON_TOOL])
        except ConfigError:
            continue
        return f"{name}, behind a call" if checked.call else name
    return "refused"


def _thinking(template: ChatTemplate) -> str:
    notes: Counter[str] = Counter()
    try:
        chains_of("row", [ASKED, THOUGHT], [], template, every=False, masked=[], notes=notes)
    except DataError:
        return "left out: refused"
    return "as `<think>`" if notes[THOUGHTS] else "yes"


def _resume(text: str) -> str:
    facts = []
    rendered = []
    for day in (1, 2):
        try:
            prompt = template_of(text, day).render([ASKED])
        except TemplateRefuses:  # a template that wants tools
            prompt = template_of(text, day).render([ASKED], [PYTHON_TOOL])
        rendered.append(prompt)
        facts.append(data_facts([Task(prompt, "42", chat=Chat((ASKED,)))]))
    if facts[0] != facts[1]:
        return "not on another day"
    return "yes" if rendered[0] == rendered[1] else "yes; the date is in prompts"


def _sft(template: ChatTemplate, notes: Counter[str]) -> tuple[str, str]:
    """Return how a conversation is learned, and by what the model learns to end its messages."""
    messages = [ASKED, SAID, AGAIN, SURE]
    try:
        chains = chains_of("row", messages, [], template, every=True, masked=[], notes=notes)
    except DataError as e:
        return ("refused: no generation prompt" if "generation prompt" in str(e) else "refused"), ""
    last, _ = template.pieces(chains[-1][-1].text)[-1] if not notes[NO_END] else ("", True)
    end = f"`{last}`" if last else "end of text, added"
    return ("one sequence" if len(chains) == 1 else f"{len(chains)} sequences"), end


def rows(read: Callable[[str, str], str]) -> list[Row]:
    """Try every family. `read` returns a template's text by where it is from and its name."""
    return [tried(family, read(source, name), _named(source, name)) for family, source, name in FAMILIES]


def _named(source: str, name: str) -> str:
    if source == IMITATED:
        return f"*imitated*: tests/data/chat_templates/{name}.jinja"
    return f"{source} {VERSIONS[source]}, {name}.jinja"


def reader(archives: Mapping[str, Path]) -> Callable[[str, str], str]:
    """Return a function that reads templates from the archives, and imitations from here."""

    def read(source: str, name: str) -> str:
        if source == IMITATED:
            return (IMITATIONS / f"{name}.jinja").read_text(encoding="utf-8")
        if source == TRL:
            with zipfile.ZipFile(archives[TRL]) as wheel:
                return wheel.read(f"trl/chat_templates/{name}.jinja").decode()
        return _in_tar(archives[LLAMA])[name]

    return read


_TARS: dict[Path, dict[str, str]] = {}


def _in_tar(path: Path) -> dict[str, str]:
    """Return every chat template of llama.cpp in the archive, which is read once."""
    if path not in _TARS:
        found: dict[str, str] = {}
        with tarfile.open(path) as archive:
            for member in archive:
                if "/models/templates/" in member.name and member.name.endswith(".jinja"):
                    content = archive.extractfile(member)
                    assert content is not None, f"{member.name} is a file"
                    found[Path(member.name).stem] = content.read().decode()
        _TARS[path] = found
    return _TARS[path]


def table(found: Sequence[Row]) -> str:
    lines = [HEADS, ["---"] * len(HEADS), *found]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the table of docs/models.md anew.")
    parser.add_argument("--trl", type=Path, required=True, help="the wheel of trl")
    parser.add_argument("--llama", type=Path, required=True, help="the source archive of llama_cpp_python")
    args = parser.parse_args()
    made = table(rows(reader({TRL: args.trl, LLAMA: args.llama})))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
