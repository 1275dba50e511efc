"""Random packs of segments behind prefixes, and a same-dtype implementation to measure against."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from .lane import few
from .layouts import LAYOUTS, relayout
from .oracles.segment_attention import segment_attention, visible_slots

# Triton leaves float64 to the reference.
WIDEST = few(torch.float64, torch.float32)
DTYPES = (torch.float32, *few((torch.float64,), ()), torch.float16, torch.bfloat16)


@dataclass
class Case:
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    offsets: list
    prefixes: list
    prefix_mode: str
    shared_offsets: bool
    starts: list | None
    window: int | None
    softcap: float | None

    @property
    def arguments(self):
        offsets = self.offsets[0] if self.shared_offsets else self.offsets
        return self.query, self.key, self.value, torch.tensor(offsets, dtype=torch.int32)

    @property
    def options(self):
        prefix_length = {
            "none": None,
            "int": self.prefixes[0],
            "tensor": torch.tensor(self.prefixes, dtype=torch.int32),
        }[self.prefix_mode]
        starts = None if self.starts is None else torch.tensor(self.starts, dtype=torch.int32)
        return {
            "prefix_length": prefix_length,
            "key_start": starts,
            "window": self.window,
            "softcap": self.softcap,
        }

    def visible(self):
        """`[B, T, S]` bool."""
        batch, _, rows, _ = self.query.shape
        visible = torch.zeros(batch, rows, self.key.shape[2], dtype=torch.bool)
        for b in range(batch):
            first = self.starts[b] if self.starts else 0
            for t in range(rows):
                slots = visible_slots(t, self.offsets[b], self.prefixes[b], self.window, first)
                visible[b, t, slots] = True
        return visible

    def expected(self):
        out, lse = segment_attention(
            *(t.double().tolist() for t in (self.query, self.key, self.value)),
            *(self.offsets, self.prefixes, self.starts or [0] * len(self.prefixes)),
            *(self.query.shape[-1] ** -0.5, self.window, self.softcap),
        )
        shape = self.query.shape
        as_tensor = torch.tensor(out, dtype=torch.float64).view(shape)
        return as_tensor, torch.tensor(lse, dtype=torch.float64).view(shape[:3])


def eager(query, key, value, visible, softcap=None):
    """Attention as models write it, in the dtype of its inputs: `(out, lse)`."""
    group = query.shape[1] // key.shape[1]
    key, value = (
        states.masked_fill(~visible.any(1)[:, None, :, None], 0).repeat_interleave(group, 1)
        for states in (key, value)
    )
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    wide = scores.double() if query.dtype == torch.float64 else scores.float()
    weights = wide.softmax(-1).nan_to_num(0)
    return weights.to(query.dtype) @ value, wide.logsumexp(-1)


def assert_close(actual, expected, case):
    """The error is at most twice that of the same-dtype implementation, and a little: in low
    precision one rounding of the largest score or value, since theirs may happen to cancel."""
    visible = case.visible()
    seen = case.value.masked_fill(~visible.any(1)[:, None, :, None], 0).abs().flatten().tolist()
    theirs = eager(case.query, case.key, case.value, visible, case.softcap)
    for got, same_dtype, exact in zip(actual, theirs, expected, strict=True):
        assert torch.equal(got == -torch.inf, exact == -torch.inf)
        finite = exact > -torch.inf
        if finite.any():
            error, their_error = ((t.double() - exact)[finite].abs() for t in (got, same_dtype))
            largest = max([1.0, *seen, exact[finite].abs().max().item()])
            allowed = {torch.float32: 2e-5, torch.float64: 1e-6}.get(
                case.query.dtype, torch.finfo(case.query.dtype).eps * largest
            )
            assert error.max() <= 2 * their_error.max() + allowed


@st.composite
def offset_rows(draw, rows, segments):
    last = draw(st.sampled_from([rows, rows, max(rows - 2, 0)]))
    inner = draw(st.lists(st.integers(0, last), min_size=segments - 1, max_size=segments - 1))
    return [0, *sorted(inner), last]


@st.composite
def cases(draw, dtypes=DTYPES):
    batch, key_heads, group, size = (
        draw(st.sampled_from(choice)) for choice in ((1, 1, 2), (1, 2), (1, 2, 3), (1, 4, 8))
    )
    rows = draw(st.integers(0, 6))
    mode = draw(st.sampled_from(["none", "int", "tensor"]))
    prefix = draw(st.sampled_from([0, 1, 4, 19]))
    spare = 0 if mode == "none" else draw(st.integers(0, 4))
    prefixes = [prefix] * batch
    if mode == "tensor":
        prefixes = [draw(st.integers(0, prefix + spare)) for _ in range(batch)]
    shared = draw(st.booleans())
    segments = draw(st.integers(1, 3))
    packs = [draw(offset_rows(rows, segments)) for _ in range(1 if shared else batch)]
    starts = draw(st.none() | st.lists(st.integers(0, prefix + 3), min_size=batch, max_size=batch))
    # Smaller and larger than a segment, than the prefix, and than both together.
    window = draw(st.none() | st.sampled_from([1, 2, 3, prefix + 1, prefix + 3, prefix + 9]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    dtype = draw(st.sampled_from(dtypes))
    slots = prefix + spare + rows

    def states(heads, length):
        made = torch.randn(batch, heads, length, size, generator=generator) * 2
        return relayout(made.to(dtype), draw(st.sampled_from(LAYOUTS)))

    query = states(key_heads * group, rows)
    one_head = draw(st.integers(0, 9)) == 0
    key, value = (
        states(1, slots).expand(-1, key_heads, -1, -1) if one_head else states(key_heads, slots)
        for _ in range(2)
    )
    softcap = draw(st.sampled_from([None, None, None, 1.5]))
    case = Case(
        *(query, key, value, packs * batch if shared else packs, prefixes, mode, shared),
        *(starts, window, softcap),
    )
    if draw(st.booleans()):
        fill_unseen(case)
    return case


def fill_unseen(case):
    """What no row of a batch row sees holds NaN and infinity."""
    unseen = ~case.visible().any(1)
    for states, garbage in ((case.key, torch.nan), (case.value, torch.inf)):
        own_heads = states[:, :1] if states.stride(1) == 0 else states
        for b in range(states.shape[0]):
            own_heads[b][:, unseen[b]] = garbage


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def states(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def pack(lengths, prefix=7, query_heads=4, key_heads=2, size=8, dtype=WIDEST):
    """Query, keys, values and offsets of a pack of segments behind a prefix."""
    rows = sum(lengths)
    offsets = int32([0, *torch.tensor(lengths).cumsum(0).tolist()])
    key, value = states(2, 1, key_heads, prefix + rows, size, dtype=dtype)
    return states(1, query_heads, rows, size, dtype=dtype, seed=1), key, value, offsets
