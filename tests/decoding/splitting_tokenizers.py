"""Tokenizers of the kinds that tell words apart in ways of their own, and texts that try them."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from tests.decoding.tokenizers_for_tests import ENGLISH, byte_character, every_kind

# How GPT-4, Llama 3 and Qwen 2 tell words apart.
SPLITS = {
    "gpt4": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    # Right to left: where a group of three begins depends on how many digits follow.
    "digits_from_the_right": r"\p{N}{1,3}(?=(\p{N}{3})*(?!\p{N}))|[^\p{N}\s]+|\s+(?!\S)|\s+",
}
CODE = "x = 12345678 + 9000\n\n\n    if a:\n\t\treturn 'I''ve'  \n  \r\n  # 你好世界 字字 don't\n"


@cache
def split_tokenizer(name, added=()):
    backend = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLITS[name]), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=560,
        special_tokens=["<|end|>"],
        initial_alphabet=[byte_character(byte) for byte in range(256)],
        show_progress=False,
    )
    text = (ENGLISH[: len(ENGLISH) // 4] + CODE) * 4
    backend.train_from_iterator([text], trainer)
    backend.add_tokens([AddedToken(token, **dict(how)) for token, how in added])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


def kinds_that_split():
    """And all the others."""
    return {
        **every_kind(),
        **{name: split_tokenizer(name) for name in SPLITS},
        "whole_words_first": whole_words_first(split_tokenizer("gpt4"), "好字"),
        "added": split_tokenizer("gpt4", _added(normalized=False)),
        "added_lstrip": split_tokenizer("gpt4", _added(lstrip=True)),
        "added_rstrip": split_tokenizer("gpt4", _added(rstrip=True)),
        "added_word": split_tokenizer("gpt4", (("fox", (("single_word", True),)),)),
        "added_words": split_tokenizer("qwen2", (("the quick", ()), (" a  b", ()))),
        "added_across": split_tokenizer("gpt4", (("字你", ()), ("e\nf", ()), (". ", ()))),
    }


def whole_words_first(tokenizer, word):
    """As Llama 3: a word of the vocabulary is one token, also where merges do not lead to it."""
    written = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = written["model"]["vocab"]
    vocabulary["".join(byte_character(byte) for byte in word.encode())] = len(tokenizer)
    written["model"]["ignore_merges"] = True
    backend = Tokenizer.from_str(json.dumps(written))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


def _added(**how):
    return (("<tool>", tuple(how.items())), ("  \n", (("normalized", False),)))
