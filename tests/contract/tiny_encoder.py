"""A small text encoder with weights of its own, in the layout that sentence-transformers writes."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = [
    "the", "a", "capital", "of", "france", "is", "paris", "berlin", "germany", "cat", "sleeps", "on", "mat", "dog",
    "runs", "red", "blue",
]  # fmt: skip


def make_model(
    directory: Path,
    *,
    pooling: dict | None = None,
    modules: tuple[str, ...] = ("Transformer", "Pooling", "Normalize"),
    **more: dict,
) -> Path:
    """A BERT of two layers over whole words, as `SentenceTransformer.save` writes it. `more`: files, by name."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special).save_pretrained(directory)
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    }
    BertModel(BertConfig(vocab_size=len(vocabulary), **sizes)).save_pretrained(directory)
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize", "Dense": "2_Dense"}
    written = [
        {"idx": i, "name": str(i), "path": paths[kind], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(modules)
    ]
    (directory / "modules.json").write_text(json.dumps(written))
    (directory / "1_Pooling").mkdir()
    config = {
        "word_embedding_dimension": 32,
        **(pooling or {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}),
    }
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(config))
    for name, content in {"sentence_bert_config": {"max_seq_length": 16, "do_lower_case": True}, **more}.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory
