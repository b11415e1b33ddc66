"""Losses of models and of training loops as our cross entropy."""
