"""autograd.Functions and what they are made of, one file per family."""
