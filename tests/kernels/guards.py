"""Memory around tensors, so that a kernel that reads or writes beside them is noticed.

Triton's interpreter sees no access out of bounds. Here inputs and outputs lie in the middle of
larger buffers whose every byte is 0xFF: NaN as a float, -1 as an integer.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

GUARD_BYTES = 4096
POISON = 0xFF


def buffer_of(size):
    return torch.full((size + 2 * GUARD_BYTES,), POISON, dtype=torch.uint8)


def view_of(buffer, like):
    """A tensor with the shape, the strides and the place in its storage of `like`."""
    inner = buffer[GUARD_BYTES : buffer.numel() - GUARD_BYTES].view(like.dtype)
    return inner.as_strided(
        like.shape, like.stride(), like.storage_offset() + inner.storage_offset()
    )


def assert_guards_are_whole(buffer):
    for guard in (buffer[:GUARD_BYTES], buffer[-GUARD_BYTES:]):
        assert bool((guard == POISON).all()), "a kernel wrote beside a tensor"


class GuardedAllocations(TorchDispatchMode):
    """New tensors that nothing fills begin as poison, within guards."""

    EMPTY = (
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.empty_strided.default,
    )

    def __init__(self):
        super().__init__()
        self.buffers = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func not in self.EMPTY or result.device.type != "cpu":
            return result
        buffer = buffer_of(result.untyped_storage().nbytes())
        self.buffers.append(buffer)
        return view_of(buffer, result)


def guarded(run):
    """`run`, a launcher of CPU tensors, on guarded copies of its inputs: it may write to its first
    one where that comes back changed, and to no other."""

    def run_guarded(*args, **kwargs):
        copies = []

        def copy(value):
            if isinstance(value, list | tuple):
                return type(value)(copy(item) for item in value)
            if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
                return value
            storage = value.untyped_storage()
            content = torch.empty(0, dtype=torch.uint8).set_(storage)
            buffer = buffer_of(storage.nbytes())
            buffer[GUARD_BYTES : GUARD_BYTES + storage.nbytes()] = content
            copies.append((buffer, content))
            return view_of(buffer, value.detach())

        inputs = copy(args), {name: copy(value) for name, value in kwargs.items()}
        with GuardedAllocations() as allocated:
            result = run(*inputs[0], **inputs[1])
        for buffer in [*allocated.buffers, *(buffer for buffer, _ in copies)]:
            assert_guards_are_whole(buffer)
        for buffer, content in copies:
            # Back into the caller's tensor, whether it was to change or not: its test can tell.
            content.copy_(buffer[GUARD_BYTES : buffer.numel() - GUARD_BYTES])
        return result

    return run_guarded
