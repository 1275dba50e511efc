"""Drafts by chance: what is drawn, and that nothing but seed and position decides it."""

import hashlib
import math
import struct
from itertools import accumulate, product

import pytest
import torch
from transformers import GenerationConfig

from ensemble_decoding import Member, SpecEM
from ensemble_decoding.options import GenerationOptions
from ensemble_decoding.sampling import sample, uniform
from tests.decoding.members_for_tests import PROMPT, member, three_families
from tests.decoding.scripted_model import scripted
from tests.decoding.tokenizers_for_tests import byte_level_tokenizer, sentencepiece_tokenizer

# The 99.9 % quantiles of chi-square, by degrees of freedom.
QUANTILES = {4: 18.467, 15: 37.697}
COMBINATIONS = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7, "top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.15},
    {"top_k": 5, "top_p": 0.7},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.3},
    {"repetition_penalty": 2.5},
    {"repetition_penalty": 0.7, "temperature": 2.0, "min_p": 0.02},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0},
]
NOTHING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}


def twins(one, count):
    return [one, *(Member(one.model, one.tokenizer) for _ in range(count - 1))]


def text_ids(one):
    special = set(one.tokenizer.all_special_ids)
    special |= {i for i, t in one.tokenizer.added_tokens_decoder.items() if t.special}
    return set(range(len(one.tokenizer))) - special


def own_generate(one, ids, new_tokens, **options):
    """transformers' `generate` with everything suppressed that is neither text nor its end."""
    allowed = text_ids(one) | {one.tokenizer.eos_token_id}
    return one.model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=new_tokens,
        suppress_tokens=sorted(set(range(one.model.config.vocab_size)) - allowed),
        eos_token_id=one.tokenizer.eos_token_id,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        **{**NOTHING, **options},
    )


def sampled_token_by_token(one, new_tokens, seed, options):
    """One `generate` per token for the scores, from which the next token is drawn here."""
    ids = one.tokenizer(PROMPT)["input_ids"]
    start = len(ids)
    while len(ids) - start < new_tokens and ids[-1] != one.tokenizer.eos_token_id:
        scores = own_generate(one, ids, 1, do_sample=True, **options).scores[0][0].tolist()
        key = struct.pack("<Qq", seed, len(ids) - start)
        digest = hashlib.blake2b(key, digest_size=8).digest()
        number = (int.from_bytes(digest, "little") >> 11) / 2**53
        weights = [math.exp(score - max(scores)) for score in scores]
        sums = list(accumulate(weights))
        ids.append(next(i for i, total in enumerate(sums) if total > number * sums[-1]))
    return ids[start:]


def chi_square(counts, expected):
    return sum((n - e) ** 2 / e for n, e in zip(counts, expected, strict=True))


def test_frequencies_are_those_of_the_softmax():
    probabilities = [0.0, 0.02, 0.48, 0.0, 0.2, 0.25, 0.05, 0.0]
    row = torch.tensor(probabilities).log() + 3
    counts = [0] * len(row)
    for seed, position in product(range(8), range(1500)):
        counts[sample(row, uniform(seed, position))] += 1
    total = sum(counts)
    possible = [i for i, p in enumerate(probabilities) if p]
    assert sum(counts[i] for i in possible) == total
    expected = [probabilities[i] * total for i in possible]
    assert chi_square([counts[i] for i in possible], expected) < QUANTILES[4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 5, 1300])
def test_the_edges_of_the_interval_never_meet_probability_zero(size, dtype):
    generator = torch.Generator().manual_seed(size)
    for _ in range(30):
        row = torch.randn(size, generator=generator).to(dtype)
        row[torch.rand(size, generator=generator) < 0.5] = -torch.inf
        row[int(torch.randint(size, (1,), generator=generator))] = 0.5
        possible = (row > -torch.inf).nonzero().flatten().tolist()
        assert sample(row, 0.0) == possible[0]
        assert sample(row, 1 - 2**-53) == possible[-1]
        assert sample(row, 0.5) in possible


def test_numbers_are_the_same_on_every_run():
    golden = {
        (0, 0): 0.0564663990004608,
        (0, 1): 0.44008326622012284,
        (1, 0): 0.6487508310490744,
        (7, 5): 0.6248094888754305,
        (2**63, 3): 0.4412579814693217,
        (123456789, 1000): 0.9810538134898175,
    }
    assert {key: uniform(*key) for key in golden} == golden


@pytest.mark.parametrize(
    "neighbour", [lambda s, p: (s, p + 1), lambda s, p: (s + 1, p), lambda s, p: (p, s)]
)
def test_numbers_of_neighbours_are_independent(neighbour):
    cells = [0] * 16
    pairs = [(s, p) for s, p in product(range(0, 160, 2), range(0, 100, 2)) if s != p]
    for pair in pairs:
        cells[int(uniform(*pair) * 4) * 4 + int(uniform(*neighbour(*pair)) * 4)] += 1
    assert chi_square(cells, [len(pairs) / 16] * 16) < QUANTILES[15]


def test_all_numbers_lie_in_the_interval_and_differ():
    numbers = [uniform(seed, position) for seed, position in product(range(50), range(50))]
    assert all(0 <= number < 1 for number in numbers)
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("options", COMBINATIONS, ids=str)
def test_processed_scores_are_those_of_generate(options):
    one = member(seed=3)
    ids = one.tokenizer(PROMPT)["input_ids"]
    result = own_generate(one, ids, 6, do_sample=True, **options)
    chooser = GenerationOptions.resolve({"do_sample": True, **options}).chooser()
    written = result.sequences[0].tolist()
    with torch.no_grad():
        logits = one.model(result.sequences).logits[0]
    suppressed = sorted(set(range(505)) - text_ids(one) - {one.tokenizer.eos_token_id})
    logits[:, suppressed] = -torch.inf
    for step, scores in enumerate(result.scores):
        count = len(ids) + step
        row = logits[count - 1].float()[None]
        context = torch.tensor([written[:count]])
        shaped = chooser.processors(context, row) if chooser.processors else row
        assert (shaped.isinf() == scores.isinf()).all()
        torch.testing.assert_close(shaped, scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", COMBINATIONS[::2], ids=str)
def test_a_model_with_itself_samples_token_by_token(options):
    """Discarded drafts, other members and the length of a segment shift nothing."""
    for tokenizer, seed in ((byte_level_tokenizer(), 4), (sentencepiece_tokenizer(), 2**40)):
        one = member(tokenizer=tokenizer, seed=3)
        expected = sampled_token_by_token(one, 24, seed, options)
        for count, segment_length in ((1, 1), (1, 5), (2, 3), (3, 10)):
            output = SpecEM(twins(one, count), segment_length=segment_length).generate(
                PROMPT, max_new_tokens=24, do_sample=True, seed=seed, **options
            )
            assert output.token_ids == [expected] * count


@pytest.mark.parametrize("penalty", [0.8, 1.2, 3.0])
@pytest.mark.parametrize("segment_length", [1, 4, 9])
def test_greedy_with_a_repetition_penalty_is_that_of_generate(penalty, segment_length):
    one = member("gemma3", sentencepiece_tokenizer(), seed=8)
    ids = one.tokenizer(PROMPT)["input_ids"]
    own = own_generate(one, ids, 48, do_sample=False, repetition_penalty=penalty)
    output = SpecEM(twins(one, 2), segment_length=segment_length).generate(
        PROMPT, max_new_tokens=48, repetition_penalty=penalty, temperature=5.0, top_k=2
    )
    assert output.token_ids == [own.sequences[0, len(ids) :].tolist()] * 2
    if penalty == 3.0:
        assert output.text != SpecEM([one]).generate(PROMPT, max_new_tokens=48).text


def test_verification_scores_stay_raw():
    members = three_families()
    run = SpecEM(members, segment_length=4).stream(
        PROMPT,
        max_new_tokens=24,
        do_sample=True,
        seed=1,
        temperature=0.3,
        top_k=3,
        repetition_penalty=2.0,
    )
    committed = [list(one.encode_prompt(PROMPT)) for one in members]
    for piece in run:
        for candidate in piece.round.candidates:
            for j, one in enumerate(members):
                ids = candidate.token_ids[j]
                with torch.no_grad():
                    logits = one.model(torch.tensor([committed[j] + ids])).logits[0]
                rows = logits[len(committed[j]) - 1 : -1, : len(one.tokenizer)].log_softmax(1)
                plain = float(rows.gather(1, torch.tensor(ids)[:, None]).mean())
                assert candidate.log_likelihoods[j] == pytest.approx(plain, abs=1e-5)
        committed = [list(context.ids) for context in run.contexts]


def test_the_seed_decides_the_text_and_the_trace_notes_it():
    method = SpecEM(three_families(), segment_length=5)
    options = {"max_new_tokens": 20, "do_sample": True, "temperature": 1.5}
    texts = [method.generate(PROMPT, seed=seed, **options).text for seed in (0, 1, 2, 2**63, 0)]
    assert texts[0] == texts[-1]
    assert len(set(texts)) == 4
    unseeded = [method.generate(PROMPT, **options) for _ in range(2)]
    assert unseeded[0].text != unseeded[1].text
    for output in unseeded:
        seed = output.rounds.options["seed"]
        again = method.generate(PROMPT, seed=seed, **options)
        assert (again.text, again.token_ids) == (output.text, output.token_ids)
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    method.generate(PROMPT, **options)
    assert (torch.random.get_rng_state() == state).all()


def test_the_order_of_the_members_changes_no_draft():
    # More than a segment, so that the limit, which counts another member's tokens, shortens none.
    options = {"max_new_tokens": 40, "do_sample": True, "seed": 5}
    a, b = (
        SpecEM(three_families()[::step]).generate(PROMPT, **options).rounds[0] for step in (1, -1)
    )
    assert {c.data for c in a.candidates} == {c.data for c in b.candidates}


def test_a_generation_config_counts_where_the_keywords_say_nothing():
    method = SpecEM(three_families(), segment_length=5)
    config = GenerationConfig(do_sample=True, temperature=0.4, top_k=9, max_new_tokens=14)
    spelled_out = {"do_sample": True, "temperature": 0.4, "top_k": 9, "max_new_tokens": 14}
    configured = method.generate(PROMPT, generation_config=config, seed=3)
    assert configured.text == method.generate(PROMPT, seed=3, **spelled_out).text
    assert {**configured.rounds.options, **spelled_out} == configured.rounds.options
    changes = {"temperature": 2.0, "max_new_tokens": 9}
    changed = method.generate(PROMPT, generation_config=config, seed=3, **changes)
    expected = method.generate(PROMPT, seed=3, **{**spelled_out, **changes})
    assert changed.token_ids == expected.token_ids
    greedy = method.generate(PROMPT, generation_config=config, do_sample=False)
    assert greedy.token_ids == method.generate(PROMPT, max_new_tokens=14).token_ids
    assert config.temperature == 0.4


@pytest.mark.parametrize("temperature", [0.5, 1.0, 30.0])
def test_what_is_neither_text_nor_its_end_is_never_drawn(temperature):
    tokenizer = byte_level_tokenizer()
    special = {1: 0.6, 2: 0.39}
    one = scripted(tokenizer, [special], PROMPT, "special")
    options = {"max_new_tokens": 40, "do_sample": True, "seed": 0, "temperature": temperature}
    (ids,) = SpecEM([one]).generate(PROMPT, **options).token_ids
    assert ids
    assert not set(ids) & set(special)

    padded = member(seed=2)
    width = len(padded.tokenizer)

    def raise_padding(module, arguments, output):
        output[..., width:] += 50
        output[..., 1:3] += 50
        return output

    padded.model.lm_head.register_forward_hook(raise_padding)
    (ids,) = SpecEM([padded]).generate(PROMPT, **options).token_ids
    assert ids
    assert max(ids) < width
    assert not set(ids) & set(special)
