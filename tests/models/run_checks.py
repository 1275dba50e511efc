"""What holds for every run of two real models, whoever wins its rounds."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from ensemble_decoding import Member
from ensemble_decoding.cache import cache_argument
from tests.models.recorded_run import Recording
from tests.models.slow_scorer import Reader

# Keys and values of packed passes against those of a plain one, in float32: 2e-4 was seen, in
# values up to 100.
CACHE = 2e-3


def inside_character(data: bytes) -> bytes:
    """The bytes at the end of `data` that wait for the rest of their character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return decoder.getstate()[0]


def check_prompts(recording: Recording, prompt: Any, ensemble: Sequence[Member]) -> None:
    """Each member reads the prompt in its own way: one BOS or none, its own template or none."""
    for context, member in zip(recording.run.contexts, ensemble, strict=True):
        tokenizer, text, bos = member.tokenizer, prompt, []
        if member.name == "gemma3":
            bos = [tokenizer.convert_tokens_to_ids("<bos>")]
            assert context.ids.count(bos[0]) == 1
        if not isinstance(prompt, str):
            text = "\n\n".join(message["content"] for message in prompt)
            if member.name == "smollm2":
                text = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained "
                text += "by Hugging Face<|im_end|>\n"
                for message in prompt:
                    text += f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
                text += "<|im_start|>assistant\n"
        ids = bos + tokenizer(text, add_special_tokens=False)["input_ids"]
        assert context.ids[: context.prompt_length] == ids


def check_text(recording: Recording, readers: Sequence[Reader]) -> None:
    """The text is what the first member's ids spell, and the others' spell the same."""
    output = recording.run.output
    data = readers[0].spell(output.token_ids[0])
    pending = inside_character(data)
    assert "".join(recording.pieces) == output.text
    assert output.pending == pending
    # Strict where it can be: U+FFFD only stands for bytes that are no UTF-8.
    complete = data[: len(data) - len(pending)]
    assert output.text == complete.decode("utf-8", "replace")
    assert output.unspelled == [b"", b""]
    last = output.rounds[-1]
    for j, (reader, ids) in enumerate(zip(readers, output.token_ids, strict=True)):
        rest = last.candidates[last.winner].token_ids[j][last.committed_tokens[j] :]
        spelled = reader.spell(ids)
        if not rest:
            assert spelled == data
        else:
            # The limit cut the last segment: whole tokens, as many as lie within the text.
            assert data.startswith(spelled)
            assert j == 0 or len(spelled + reader.spell(rest[:1])) > len(data)
    check_limit(recording, readers[0])


def check_limit(recording: Recording, first: Reader) -> None:
    """Exactly the limit, fewer only at the end of the text or to end on a complete character."""
    output, limit = recording.run.output, recording.limit
    ids = output.token_ids[0]
    assert len(ids) <= limit
    if output.finish_reason == "stop":
        assert ids[-1] in first.end_ids
        return
    assert output.finish_reason == "length"
    last = output.rounds[-1]
    dropped = last.candidates[last.winner].token_ids[0][last.committed_tokens[0] :]
    for count in range(1, limit - len(ids) + 1):
        assert inside_character(first.spell(ids + dropped[:count]))


def check_passes(recording: Recording) -> None:
    """Token for token: the prompt once, each draft while it is written, one pass over all
    candidates, and nothing else; logits of one row for the prompt, and never more than are fed."""
    run = recording.run
    for j, (passes, usage) in enumerate(zip(recording.passes, run.output.usage, strict=True)):
        prompt = run.contexts[j].ids[: run.contexts[j].prompt_length]
        drafted, packed = [], []
        expected = [prompt]
        for round_ in run.output.rounds:
            (draft,) = (c.token_ids[j] for c in round_.candidates if j in c.drafted_by)
            drafted += [[token] for token in draft[:-1]]
            packed.append([token for c in round_.candidates for token in c.token_ids[j]])
            expected += [[token] for token in draft[:-1]] + packed[-1:]
        assert passes.fed == expected
        assert usage.prompt_tokens == len(prompt)
        assert usage.drafted_tokens == len(drafted)
        assert usage.verified_tokens == sum(map(len, packed))
        assert usage.forward_passes == len(expected)
        rows = [shape[-2] for shape, _ in passes.logits]
        assert rows[0] == 1
        assert all(count <= len(fed) for count, fed in zip(rows, expected, strict=True))


def check_caches(recording: Recording) -> None:
    """After the last commit each cache is that of a plain pass over the committed ids."""
    for context in recording.run.contexts:
        model, fresh = context.member.model, DynamicCache()
        with torch.no_grad():
            model.base_model(torch.tensor([context.ids]), **{cache_argument(model): fresh})
        assert context.cache.length == len(context.ids)
        for index, layer in enumerate(fresh.layers):
            stored = context.cache.storage[:, index, ..., : len(context.ids), :]
            torch.testing.assert_close(stored[0], layer.keys, rtol=0, atol=CACHE)
            torch.testing.assert_close(stored[1], layer.values, rtol=0, atol=CACHE)
