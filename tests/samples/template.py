"""Samples of the template op."""

from __future__ import annotations

from util import make


def template_samples(device, dtype, codes):
    for shape in [(7,), (3, 5), ()]:
        yield make(*shape, dtype=dtype, device=device), 1.5


SAMPLES = {"template_scale": template_samples}
