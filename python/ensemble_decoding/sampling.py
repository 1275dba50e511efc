"""How a draft's next token is chosen from a row of logits: greedily or by chance.

Random numbers are counted, not drawn in a row: the number for a position is a hash of the seed and
the position, so that discarded drafts do not shift what follows, and the same seed gives the same
text on every device. All members use the same number at the same position of their response: a
model with itself still agrees, and the order of the members changes nothing.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

# Rows are searched in blocks for their maximum, see `first_maximum`.
_BLOCK = 512


class ExtremeTemperature(LogitsProcessor):
    """Divides scores by a temperature that float32 is too small for.

    There a score over 1e-38 is infinite, and 1e300 is infinite itself. The distances to the highest
    score in float64 are neither: a tiny temperature is greedy, a huge one chooses all alike.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.double()
        return ((scores - scores.amax(-1, keepdim=True)) / self.temperature).float()


class TokenChooser:
    """Chooses the next token of one member.

    Args:
        processors: shape the row first (penalties, temperature, top-k, ...), as in `generate`.
        seed: for sampling; None chooses the most probable token.
    """

    def __init__(self, processors: LogitsProcessorList | None = None, seed: int | None = None):
        self.processors = processors
        self.seed = seed

    @property
    def reads_suppressed(self) -> bool:
        """Whether the row must be rid of ids that may not be chosen before it is looked at."""
        return bool(self.processors) or self.seed is not None

    def choose(self, row: Tensor, ids: Sequence[int], position: int) -> int:
        """A token of `row [V]`, which follows `ids`; `position` counts in the response.

        Returns the index of a NaN if the row has one.
        """
        return self.pick(self.shaped(row, ids), position)

    def shaped(self, row: Tensor, ids: Sequence[int]) -> Tensor:
        """`row [V]` behind the processors, which see that it follows `ids`."""
        if not self.processors:
            return row
        context = torch.tensor([ids], device=row.device)
        return self.processors(context, row[None].float())[0]  # type: ignore[arg-type]

    def pick(self, row: Tensor, position: int) -> int:
        """A token of `row [V]` as it is; `position` counts in the response."""
        if self.seed is None:
            return first_maximum(row)
        return sample(row, uniform(self.seed, position))


def uniform(seed: int, position: int, purpose: bytes = b"") -> float:
    """A number from [0, 1) with 53 bits, which depends on its arguments alone; those for different
    purposes (at most 16 bytes) are independent."""
    packed = struct.pack("<Qq", seed % 2**64, position)
    digest = hashlib.blake2b(packed, digest_size=8, person=purpose).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def sample(row: Tensor, number: float) -> int:
    """The index in which `number` of the cumulated softmax of `row [V]` falls."""
    highest = first_maximum(row)
    if not bool(row[highest] > -torch.inf):
        return highest
    cumulated = torch.softmax(row.double(), 0).cumsum(0)
    # The first index whose sum exceeds the number; never one of probability 0.
    index = int(torch.searchsorted(cumulated, number * float(cumulated[-1]), right=True))
    return min(index, int((row > -torch.inf).nonzero()[-1]))


def first_maximum(row: Tensor) -> int:
    """The first index of the maximum of `row [V]`, that of a NaN if there is one.

    Block maxima first: they run at the speed of memory, argmax over a whole row of 262,144 takes
    ten times as long.
    """
    whole = row.shape[0] // _BLOCK * _BLOCK
    if not whole:
        return int(row.argmax())
    maxima = row[:whole].unflatten(0, (-1, _BLOCK)).amax(1)
    if whole < row.shape[0]:
        maxima = torch.cat([maxima, row[whole:].amax(0, keepdim=True)])
    start = int(maxima.argmax()) * _BLOCK
    return start + int(row[start : start + _BLOCK].argmax())
