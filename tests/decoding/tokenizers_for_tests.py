"""Small tokenizers of the kinds that models have, trained here: nothing is fetched, and the same
ids come out in every process. All come as transformers fast tokenizers; each is made once, so
copy one before changing it."""

from __future__ import annotations

import json
import random
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

ENGLISH = (
    "The quick brown fox jumps over the lazy dog. The answer is 42, and the question was lost. "
    "A model reads the text, writes the next segment, and another model reads what it wrote.\n"
    "Incorrect answers are corrected; correct ones are kept. Where was the incorrect one?\n\n"
    "Hello! She said that her brother would never have gone home without asking for the keys, "
    "because they had only just found them under a table in the kitchen. It's true, isn't it?\n"
    "Please give me a short list of three reasons why water boils sooner on high mountains.\n\n"
    "1. Air pressure falls with height. 2. Less heat is needed. 3. Vapour leaves more easily.\n"
    'def add(left, right):\n    """Returns the sum."""\n    return left + right\n\n'
    "Café, naïve, Zürich, Ærø, El Niño. 你好,世界 — привет, мир! 😀 😀 😀 🦜 👩‍👩‍👧\n"
) * 4
GERMAN = (
    "Franz jagt im komplett verwahrlosten Taxi quer durch Bayern. Die Antwort ist 42, die Frage "
    "ging verloren. Ein Modell liest den Text, schreibt das nächste Stück, das andere prüft es.\n"
    "Falsche Antworten werden verbessert, richtige behalten. Größe, Übermut, äußerst: öde! 🦜 "
    "The quick dog reads the next answer.\n\n"
    "Gib mir bitte eine kurze Liste von drei Gründen, warum Wasser auf hohen Bergen früher "
    "kocht: der Luftdruck sinkt mit der Höhe, man braucht weniger Wärme, und Dampf entweicht.\n"
    "Hallo! Sie sagte, ihr Bruder wäre nie nach Hause gegangen, ohne nach dem Schlüssel zu "
    "fragen, weil sie ihn gerade erst unter dem Tisch in der Küche gefunden hatten.\n"
) * 4

# Every byte-level tokenizer with holes lacks these: two controls, a letter, the lead byte of
# dashes and of U+2581, the lead byte of no character in use.
MISSING_BYTES = b"\x04\x06q\xe2\xf1"
DEFAULT_SIZE = 500


@cache
def byte_level_tokenizer(
    seed_text: str = ENGLISH,
    vocab_size: int = DEFAULT_SIZE,
    *,
    bos: bool = False,
    eos: bool = True,
    nfc: bool = False,
    missing_bytes: bytes = b"",
) -> PreTrainedTokenizerFast:
    """GPT-2's kind. With `nfc` as Qwen's, with `missing_bytes` as SmolLM2's (they are dropped)."""
    alphabet = [byte_character(byte) for byte in range(256) if byte not in missing_bytes]
    seed_text = "".join(c for c in seed_text if not set(c.encode()) & set(missing_bytes))
    backend = Tokenizer(models.BPE())
    if nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|begin|>", "<|tool|>"]
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(seed_text.splitlines(keepends=True), trainer)
    return _wrapped(backend, bos="<|begin|>" if bos else None, eos=special[0] if eos else None)


@cache
def sentencepiece_tokenizer(
    seed_text: str = ENGLISH,
    vocab_size: int = DEFAULT_SIZE,
    *,
    bos: bool = True,
    eos: bool = True,
    dummy_prefix: bool = False,
    metaspace: bool = False,
    byte_fallback: bool = True,
) -> PreTrainedTokenizerFast:
    """Llama's and Gemma's kind: `▁` for a space, `<0x0A>` for a byte that no token holds.

    Marks are put by a normalizer (Gemma, Llama 2) or by a Metaspace pre-tokenizer (Mistral);
    `dummy_prefix` writes one before the text, as Llama 2 does. The letters have a byte token
    beside their own, so many bytes are those of two ids. Without `byte_fallback`: `<unk>`.
    """
    special = ["<unk>", "<s>", "</s>"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    pieces, merges = _trained_pieces(seed_text, vocab_size - len(special) - len(fallback))
    vocabulary = {token: number for number, token in enumerate(special + fallback + pieces)}
    backend = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if metaspace:
        scheme = "first" if dummy_prefix else "never"
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    else:
        marks = normalizers.Replace(" ", "▁")
        backend.normalizer = (
            normalizers.Sequence([normalizers.Prepend("▁"), marks]) if dummy_prefix else marks
        )
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if dummy_prefix:
        parts.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(parts)
    return _wrapped(
        backend, bos="<s>" if bos else None, eos="</s>" if eos else None, unk_token="<unk>"
    )


@cache
def permuted_tokenizer(
    tokenizer: PreTrainedTokenizerFast, seed: int = 0
) -> PreTrainedTokenizerFast:
    """The same tokens and merges under other ids, none of which has kept its place."""
    written = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = written["model"]["vocab"]
    ids = sorted(vocabulary.values())
    random.Random(seed).shuffle(ids)
    # A cycle through the shuffled ids: no id is mapped to itself.
    moved = dict(zip(ids, ids[1:] + ids[:1], strict=True))
    written["model"]["vocab"] = {token: moved[number] for token, number in vocabulary.items()}
    for added in written["added_tokens"]:
        added["id"] = moved[added["id"]]
    written["added_tokens"].sort(key=lambda added: added["id"])
    written["post_processor"] = None
    return _wrapped(
        Tokenizer.from_str(json.dumps(written)),
        bos=tokenizer.bos_token if tokenizer("")["input_ids"] else None,
        eos=tokenizer.eos_token,
        unk_token=tokenizer.unk_token,
    )


def every_kind() -> dict[str, PreTrainedTokenizerFast]:
    return {
        "byte_level": byte_level_tokenizer(),
        "byte_level_bos": byte_level_tokenizer(GERMAN, 400, bos=True),
        "byte_level_nfc": byte_level_tokenizer(nfc=True),
        "byte_level_holes": byte_level_tokenizer(missing_bytes=MISSING_BYTES),
        "permuted": permuted_tokenizer(byte_level_tokenizer()),
        "sentencepiece": sentencepiece_tokenizer(),
        "sentencepiece_no_bos": sentencepiece_tokenizer(GERMAN, bos=False),
        "sentencepiece_permuted": permuted_tokenizer(sentencepiece_tokenizer(), 1),
        "metaspace": sentencepiece_tokenizer(metaspace=True),
        "dummy_prefix": sentencepiece_tokenizer(dummy_prefix=True),
        "metaspace_dummy_prefix": sentencepiece_tokenizer(metaspace=True, dummy_prefix=True),
        "no_byte_fallback": sentencepiece_tokenizer(byte_fallback=False),
    }


def byte_character(byte: int) -> str:
    """The character of a byte in GPT-2's alphabet: itself if printable, else from U+0100 up."""
    others = [b for b in range(256) if not (0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE)]
    return chr(0x100 + others.index(byte)) if byte in others else chr(byte)


def _trained_pieces(seed_text: str, size: int) -> tuple[list[str], list[tuple[str, str]]]:
    # The alphabet is chosen here: BpeTrainer(limit_alphabet=...) breaks ties differently in each
    # process. Emoji stay out of it, so that they are written in bytes.
    alphabet = sorted({c for c in seed_text if ord(c) < 0x2000 and c not in " \n"} | {"▁"})
    text = "".join(c if c in alphabet else "▁" if c == " " else "\n" for c in seed_text)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator((line for line in text.split("\n") if line), trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    return pieces, [(left, right) for left, right in model["merges"]]


def _wrapped(
    backend: Tokenizer, *, bos: str | None, eos: str | None, unk_token: str | None = None
) -> PreTrainedTokenizerFast:
    for token in sorted(filter(None, {bos, eos, unk_token})):
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    if bos is not None:
        backend.post_processor = TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A $B",
            special_tokens=[(bos, backend.token_to_id(bos))],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos, eos_token=eos, unk_token=unk_token
    )
