"""What an operator allocates."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LargestResult(TorchDispatchMode):
    """Elements of the largest tensor that is not a view of the inputs."""

    def __init__(self, *inputs):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            is_tensor = isinstance(tensor, torch.Tensor)
            if is_tensor and tensor.untyped_storage().data_ptr() not in self.known:
                self.elements = max(self.elements, tensor.numel())
        return result
