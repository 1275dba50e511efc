import torch

# Two workers on two cores (pytest -n 2): more threads would only wait for each other.
torch.set_num_threads(1)
