"""Random ensembles of tiny random models, with prompts and options."""

from dataclasses import dataclass
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st

from ensemble_decoding import Member, SpecEM
from tests.decoding.models_for_tests import ARCHITECTURES as NAMED
from tests.decoding.test_architectures import CONFIGS, EAGER, model
from tests.decoding.text_oracle import bytes_of_ids
from tests.decoding.tokenizers_for_tests import (
    GERMAN,
    byte_level_tokenizer,
    permuted_tokenizer,
    sentencepiece_tokenizer,
)

# Each spells every byte, so that no member has to leave anything out.
TOKENIZERS = {
    "bytes": byte_level_tokenizer(),
    "bytes with a beginning": byte_level_tokenizer(GERMAN, 400, bos=True),
    "pieces": sentencepiece_tokenizer(),
    "permuted": permuted_tokenizer(byte_level_tokenizer(GERMAN)),
}
ARCHITECTURES = (*NAMED, *CONFIGS)
PLAIN_PROMPTS = (
    "The quick brown fox ",
    "x",
    "Größe 😀 你好",
    # Longer than the sliding window in every tokenizer.
    "Incorrect answers are corrected; correct ones are kept. Where was the incorrect one? " * 2,
)
# A tokenizer would put a second beginning before these.
PROMPTS = (*PLAIN_PROMPTS, "<s>Hello! ", "<|begin|>Hello! ")
# What random models often write.
STOPS = ("e", "q", " t", "ü", "\n")


def property_settings(max_examples):
    return settings(max_examples=max_examples, deadline=None, derandomize=True)


@cache
def model_of(architecture, copy=False):
    """The same model each time; an equal `copy` for what must not meet a switched attention."""
    if architecture in CONFIGS:
        return model(architecture)
    return NAMED[architecture](len(TOKENIZERS["bytes"]) + 5)


@cache
def _spelling(tokenizer):
    return bytes_of_ids(TOKENIZERS[tokenizer])


@dataclass(frozen=True)
class Spec:
    """What a member is made of. `ends`: many tokens end the text, since random models hardly ever
    choose a single one."""

    architecture: str
    tokenizer: str
    ends: bool = False

    @property
    def tolerance(self):
        return EAGER.get(self.architecture, 1e-10)

    def end_ids(self):
        if not self.ends:
            return [TOKENIZERS[self.tokenizer].eos_token_id]
        # Of several bytes: what is left spells every byte.
        longer = sorted(i for i, token in _spelling(self.tokenizer).items() if len(token) > 1)
        return longer[::8]

    def spell(self, ids):
        """The bytes of ids; end-of-text has none. Any other id without text is a KeyError."""
        ends = set(self.end_ids())
        return b"".join(_spelling(self.tokenizer)[i] for i in ids if i not in ends)


@cache
def member_of(spec):
    one = Member(model_of(spec.architecture), TOKENIZERS[spec.tokenizer], name=str(spec))
    return one.with_end_of_text(spec.end_ids())


@dataclass
class Case:
    """An ensemble and what it is asked for."""

    drafters: list
    verifiers: list
    method: dict
    prompt: str
    options: dict

    @property
    def specs(self):
        return [*self.drafters, *self.verifiers]

    @property
    def one_tokenizer(self):
        return len({spec.tokenizer for spec in self.specs}) == 1

    def stream(self, **changes):
        method = SpecEM(
            [member_of(spec) for spec in self.drafters],
            verifiers=[member_of(spec) for spec in self.verifiers],
            **self.method,
        )
        return method.stream(self.prompt, **{**self.options, **changes})

    def output(self, **changes):
        run = self.stream(**changes)
        for _ in run:
            pass
        return run.output


SPECS = st.builds(
    Spec, st.sampled_from(ARCHITECTURES), st.sampled_from(sorted(TOKENIZERS)), st.booleans()
)
METHODS = st.fixed_dictionaries(
    {
        "segment_length": st.integers(1, 9),
        "segment_boundary": st.sampled_from(["character", "word"]),
        "learning_rate": st.sampled_from([0.0, 1.0, 6.0]),
        "feedback": st.sampled_from(["wins", "score", None]),
        "score": st.sampled_from(["logprob", "logit"]),
        "exit_threshold": st.sampled_from([None, None, 0.5, 0.9]),
    }
)
SAMPLING = st.fixed_dictionaries(
    {"do_sample": st.just(True), "seed": st.integers(0, 2**40)},
    optional={
        "temperature": st.sampled_from([0.5, 1.5]),
        "top_k": st.integers(1, 20),
        "top_p": st.sampled_from([0.5, 0.9]),
    },
)
LIMITS = st.integers(1, 40)


@st.composite
def options(draw):
    drawn = draw(st.one_of(st.just({}), SAMPLING)) | {"max_new_tokens": draw(LIMITS)}
    if draw(st.booleans()):
        drawn["stop_strings"] = draw(st.lists(st.sampled_from(STOPS), min_size=1, max_size=2))
    return drawn


@st.composite
def specs(draw, **sizes):
    """Ensembles of any members, and such where all share a tokenizer."""
    drawn = draw(st.lists(SPECS, **sizes))
    if draw(st.integers(0, 3)):
        return drawn
    return [Spec(spec.architecture, drawn[0].tokenizer, drawn[0].ends) for spec in drawn]


@st.composite
def cases(draw, min_size=1, **changes):
    drawn = draw(specs(min_size=min_size, max_size=6))
    verifiers = min(draw(st.integers(0, 2)), len(drawn) - min_size)
    split = len(drawn) - verifiers
    return Case(
        drafters=drawn[:split],
        verifiers=drawn[split:],
        method=draw(METHODS) | {name: draw(values) for name, values in changes.items()},
        prompt=draw(st.sampled_from(PROMPTS)),
        options=draw(options()),
    )
