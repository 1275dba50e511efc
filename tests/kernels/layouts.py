"""The same values in other memory: what is not part of the tensor is NaN."""

import torch

LAYOUTS = ("contiguous", "transposed", "sliced", "offset", "every other", "column-major")


def relayout(tensor, layout):
    if layout == "contiguous":
        return tensor.contiguous()
    if layout == "transposed":  # heads and positions, or rows and columns
        return (
            tensor.transpose(-3 if tensor.ndim > 2 else -1, -2)
            .contiguous()
            .transpose(-3 if tensor.ndim > 2 else -1, -2)
        )
    if layout == "column-major":
        return tensor.mT.contiguous().mT
    *leading, rows, columns = tensor.shape
    if layout == "sliced":
        view = tensor.new_full((*leading, rows + 5, columns), torch.nan)[..., 2 : 2 + rows, :]
    elif layout == "every other":
        view = tensor.new_full((*leading, rows, 2 * columns), torch.nan)[..., ::2]
    else:
        storage = tensor.new_full((tensor.numel() + 7,), torch.nan)
        view = storage[3 : 3 + tensor.numel()].view(tensor.shape)
    return view.copy_(tensor)
