"""The key/value cache of one member: a committed part and a staged tail.

All layers share one storage tensor `[2, layers, B, Hkv, slots, D]` (keys, then values), so that a
commit moves the slots of the whole model in one call. Storage grows by doubling and is written in
place: a decoding step concatenates nothing. Sliding-window layers keep every slot, since attention
does the windowing by position; that costs memory and makes every rollback exact.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from ensemble_kernels import compact_kv_

_FIRST_SLOTS = 64


class SegmentCache(Cache):
    """A `transformers.Cache` for drafting, packed verification and rollback.

    Forward passes append to the staged tail. `commit` makes a run of staged slots the new end of
    the committed part, `rollback` drops the staged tail; neither computes anything again.

    Args:
        num_layers: layers of the model.
        capacity: slots allocated at the first forward pass; more are added when needed.
        fixed_capacity: never grow, so that every address stays as it is; a pass that does not fit
            raises ValueError.
    """

    def __init__(self, num_layers: int, *, capacity: int = 0, fixed_capacity: bool = False) -> None:
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers}")
        if fixed_capacity and capacity < 1:
            raise ValueError(f"capacity must be at least 1 with fixed_capacity, got {capacity}")
        self._segment_layers = [SegmentCacheLayer(self, index) for index in range(num_layers)]
        super().__init__(layers=list(self._segment_layers))
        self.storage: Tensor | None = None
        self.committed = 0
        self.fixed_capacity = fixed_capacity
        self._initial_capacity = capacity

    @property
    def capacity(self) -> int:
        """Slots for which there is storage."""
        return 0 if self.storage is None else self.storage.shape[-2]

    @property
    def memory_bytes(self) -> int:
        """Bytes of the storage."""
        return 0 if self.storage is None else self.storage.nbytes

    @property
    def length(self) -> int:
        """Committed and staged slots."""
        return max(layer.length for layer in self._segment_layers)

    @property
    def staged(self) -> int:
        """Slots behind the committed part that a commit may still keep."""
        return self.length - self.committed

    def stage(self, slots: int) -> None:
        """Makes room for `slots` more slots, so that no layer has to in the middle of a pass."""
        if self.storage is not None and self.length + slots > self.capacity:
            self._grow(self.storage, self.length + slots)

    def commit(self, start: int = 0, count: int | None = None) -> None:
        """Keeps `count` staged slots from staged slot `start` on and drops the other staged ones.

        The kept slots move to the end of the committed part. Nothing before it changes.
        """
        staged = self.staged
        count = staged - start if count is None else count
        if start < 0 or count < 0 or start + count > staged:
            raise ValueError(
                f"start and count must lie within the {staged} staged slots, "
                f"got start={start}, count={count}"
            )
        if start and count:
            assert self.storage is not None
            first = self.committed + start
            keep = torch.arange(first, first + count, device=self.storage.device)
            compact_kv_(self.storage, keep, self.committed)
        self._set_length(self.committed + count)

    def rollback(self) -> None:
        """Drops the staged tail."""
        self._set_length(self.committed)

    def keep_staged(self, count: int) -> None:
        """Drops all staged slots but the first `count`."""
        if not 0 <= count <= self.staged:
            raise ValueError(f"count must be from 0 to {self.staged}, got {count}")
        for layer in self._segment_layers:
            layer.length = self.committed + count

    def truncate(self, length: int) -> None:
        """Drops the staged tail and all committed slots from `length` on."""
        if not 0 <= length <= self.committed:
            raise ValueError(f"length must be from 0 to {self.committed}, got {length}")
        self._set_length(length)

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last `-tokens_to_remove` slots, as `transformers.Cache.crop` does.

        0 removes nothing; a positive number, or more than there are, raises ValueError.
        """
        remaining = self.length + tokens_to_remove
        if tokens_to_remove > 0 or remaining < 0:
            raise ValueError(
                f"tokens_to_remove must be from {-self.length} to 0, got {tokens_to_remove}"
            )
        self._set_length(remaining)

    def reset(self) -> None:
        """Empties the cache and keeps its storage."""
        self._set_length(0)

    def _set_length(self, length: int) -> None:
        self.committed = length
        for layer in self._segment_layers:
            layer.length = length

    def _allocate(self, keys: Tensor, slots: int) -> Tensor:
        batch, heads, _, head_dim = keys.shape
        capacity = max(slots, self._initial_capacity)
        if not self.fixed_capacity:
            capacity = max(capacity, _FIRST_SLOTS)
        self.storage = torch.empty(
            (2, len(self.layers), batch, heads, capacity, head_dim),
            dtype=keys.dtype,
            device=keys.device,
        )
        return self.storage

    def _grow(self, old: Tensor, slots: int) -> Tensor:
        if self.fixed_capacity:
            raise ValueError(
                f"the cache has a fixed capacity of {self.capacity} slots, {slots} were needed"
            )
        shape, filled = list(old.shape), self.length
        shape[-2] = max(slots, 2 * self.capacity)
        self.storage = torch.empty(shape, dtype=old.dtype, device=old.device)
        self.storage[..., :filled, :] = old[..., :filled, :]
        return self.storage


class SegmentCacheLayer(CacheLayerMixin):
    """One layer's view of the storage of a `SegmentCache`."""

    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, cache: SegmentCache, index: int) -> None:
        super().__init__()
        self.cache = cache
        self.index = index
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes `[B, Hkv, T, D]` keys and values behind the layer's last slot; returns views of
        all of the layer's slots, `[B, Hkv, length, D]` each."""
        cache = self.cache
        begin, end = self.length, self.length + key_states.shape[-2]
        storage = cache.storage
        if storage is None:
            storage = cache._allocate(key_states, end)
        expected = (*storage.shape[2:4], key_states.shape[-2], storage.shape[-1])
        if key_states.shape != expected or value_states.shape != expected:
            raise ValueError(
                f"all layers must have keys and values of one shape, {list(expected)}, got "
                f"{list(key_states.shape)} and {list(value_states.shape)} in layer {self.index}"
            )
        if end > storage.shape[-2]:
            storage = cache._grow(storage, end)
        layer = storage[:, self.index]
        layer[0, ..., begin:end, :] = key_states
        layer[1, ..., begin:end, :] = value_states
        self.length = end
        self.is_initialized = True
        visible = layer[..., :end, :]
        return visible[0], visible[1]

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        return self.cache.capacity if self.cache.fixed_capacity else -1


def cache_argument(model: torch.nn.Module) -> str:
    """The keyword by which the model's `forward` takes its cache: `cache` from transformers 5.24
    on, `past_key_values` before."""
    parameters = inspect.signature(model.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"
