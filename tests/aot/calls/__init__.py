"""Calls of the launchers, one file an operator, whose kernels are compiled ahead of time: one for
every specialisation that ships. The tensors are on the meta device: shapes, strides and dtypes."""
