"""Passes over the graph of torch's functions, before autograd: Inductor's pre_grad_custom_pass."""
