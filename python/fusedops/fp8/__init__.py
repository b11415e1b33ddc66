"""FP8 training and inference: recipes, quantisers, products with scales.

`Recipe` says how linear layers run in FP8; `fusedops.nn.Linear`, `MLP` and `GatedMLP`, their
functions and `fusedops.fuse` take one, and `autocast` sets one for a region.
"""

from .inference import linear
from .normed import layer_norm, rms_norm
from .quantizer import Quantized, dequantize, quantize
from .recipe import Recipe, autocast, checkpoint_contexts
from .weights import invalidate

__all__ = [
    "Quantized",
    "Recipe",
    "autocast",
    "checkpoint_contexts",
    "dequantize",
    "invalidate",
    "layer_norm",
    "linear",
    "quantize",
    "rms_norm",
]
