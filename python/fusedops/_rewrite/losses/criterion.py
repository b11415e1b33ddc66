"""fuse_loss: a function of logits and targets as our cross entropy.

What a function forms is found as in functions.py: its source may do nothing but prepare logits and
targets for torch's cross entropy, and its values and gradients on probes have to be our op's.
"""

from __future__ import annotations

import functools
import itertools
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as torch_nn

from ..._core.precision import is_autocast_on
from ...ops.cross_entropy import loss_of_rows
from ..known import KnownFunctions
from ..source import Reader
from .functions import CALLS, DTYPES, FUNCTIONS, HALVES, is_dynamo_compiling, losses_agree, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..forward_code import Outside

_IGNORED = -100  # by default
_PLAIN = frozenset({0, 1, 2})  # of dimensions, and of a shift by one token
# Classes, batch and time of probes, one of them longer than what a function may cut.
_SIZES = ((3, 5, 7), (103, 3, 4), (2, 103, 4), (4, 3, 103))


class CriterionForm(NamedTuple):
    """How a function of logits (..., V) and targets (...) forms a cross entropy."""

    ignore_index: int
    label_smoothing: float
    reduction: str
    shifted: bool  # a token's target is the next token's
    wide: bool  # half logits are converted to float32 first
    taken: frozenset[tuple[int, torch.dtype]] = frozenset()  # (dimensions, dtype) of logits

    def of(self, logits: Tensor, target: Tensor) -> Tensor:
        """What the function gives, by our op."""
        if self.shifted:
            target = F.pad(target, (0, 1), value=self.ignore_index)[..., 1:]
        return loss_of_rows(
            logits.reshape(-1, logits.shape[-1]),
            target.reshape(-1),
            self.ignore_index,
            self.label_smoothing,
            self.reduction,
            fp32_out=self.wide and logits.dtype in HALVES,
        )

    def takes(self, logits: Any, target: Any) -> bool:
        """Whether the op stands for the function with these arguments."""
        if not plain(logits, target) or (logits.dim(), logits.dtype) not in self.taken:
            return False
        if target.shape != logits.shape[:-1] or 0 in logits.shape:
            return False
        if not (logits.is_contiguous() and target.is_contiguous()):  # which it may view
            return False
        # NOTE: autocast leaves a loss alone that is formed in float32.
        return self.wide or not is_autocast_on(logits.device.type)


def _read(function: FunctionType) -> tuple[CriterionForm, Outside] | None:
    reader = Reader(torch_nn.Module(), FUNCTIONS)
    reader.read_function(function)
    if not reader.calls <= CALLS or len(reader.numbers - {0.0}) > 1:
        return None
    others = reader.integers - _PLAIN  # an ignored index; more might cut what is longer
    if len(others - {-_IGNORED}) > 1:
        return None
    smoothing = next(iter(reader.numbers - {0.0}), 0.0)
    ignored = dict.fromkeys((_IGNORED, *(s * i for i in reader.integers for s in (-1, 1))))
    forms = []
    for index, reduction, shifted, wide in itertools.product(
        ignored, ("mean", "sum"), (False, True), (True, False)
    ):
        form = CriterionForm(index, smoothing, reduction, shifted, wide)
        if _agrees(function, form, 3, torch.float32) or _agrees(function, form, 2, torch.float32):
            taken = frozenset(
                (dims, dtype)
                for dims in (2, 3)
                for dtype in DTYPES
                if _agrees(function, form, dims, dtype)
            )
            forms.append(form._replace(taken=taken))
    best = max(forms, key=lambda form: len(form.taken), default=None)
    return None if best is None else (best, reader.outside)


def _probes(form: CriterionForm, dims: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(7)
    for size in _SIZES if dtype is torch.float32 else _SIZES[:1]:
        shape = size if dims == 3 else (size[0] * size[1], size[2])
        logits = torch.randn(*shape, generator=random, dtype=torch.float64, device="cpu")
        target = torch.randint(shape[-1], shape[:-1], generator=random, device="cpu")
        target.view(-1)[1::4] = form.ignore_index
        yield logits.to(dtype), target


def _agrees(
    function: Callable[..., Any], form: CriterionForm, dims: int, dtype: torch.dtype
) -> bool:
    """Whether a function gives what the op does, and the gradients."""
    for logits, target in _probes(form, dims, dtype):
        logits.requires_grad_()
        theirs = functools.partial(function, logits, target)
        if not losses_agree(logits, theirs, functools.partial(form.of, logits, target)):
            return False
    return True


_CRITERIA = KnownFunctions(_read)


class Criterion:
    """What `fuse_loss` returns: the function, by our op where it takes the arguments."""

    def __init__(self, function: FunctionType) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """function(...)."""
        if len(args) == 2 and not kwargs and not is_dynamo_compiling():
            form = _CRITERIA.get(self.function)
            if form is not None and form.takes(*args):
                return form.of(*args)
        return self.function(*args, **kwargs)


def fuse_loss(function: Callable[..., Any]) -> Criterion:
    """A loss function of logits and targets, by `fusedops.cross_entropy`.

    `fuse` finds losses inside of a model; this is for training loops whose loss stands beside it,
    as torchtitan's does::

        def loss_fn(logits, labels):
            return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))

        loss_fn = fusedops.fuse_loss(loss_fn)

    Half logits are read as they are, without a copy in float32: exact, since the op computes in
    float32. The gradient is written in the dtype of the logits at once.

    Args:
        function: Takes logits (M, V) or (B, T, V) and targets (M,) or (B, T), of int64, and returns
            a scalar. Its source may only reshape, convert or shift them by a token for torch's
            cross entropy (mean or sum, ignore_index, label_smoothing), and it has to give our
            values and gradients on probe values.

    Returns:
        A callable with the same arguments. The function itself runs under torch.compile (where the
        graph pass, `fusedops.inductor`, finds it), with further or named arguments, on other dtypes
        or layouts, and after something that it refers to was replaced.

    Raises:
        TypeError: Not a Python function.
        ValueError: The function was not recognised as a cross entropy.
    """
    if isinstance(function, Criterion):
        return function
    if type(function) is not FunctionType:
        hint = "; a module goes to fusedops.fuse" if isinstance(function, torch_nn.Module) else ""
        raise TypeError(
            f"fuse_loss: function must be a Python function; got {type(function).__name__}{hint}"
        )
    if _CRITERIA.find(function) is None:
        raise ValueError(
            f"fuse_loss: expected a function that prepares logits and targets for "
            f"F.cross_entropy and does nothing else; got {function.__qualname__}"
        )
    return Criterion(function)
