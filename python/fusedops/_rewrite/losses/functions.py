"""Losses of models as our cross entropy: functions, torch's own, and torch's module.

A function such as Hugging Face's ForCausalLMLoss counts by its source, which may do nothing but
reshape logits and labels for torch's cross entropy, and by its values and gradients on probes, not
by its name. Half logits that it converts to float32 are read as they are: the conversion is exact,
and our op computes in float32.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as torch_nn

from ..._autograd.compose import no_autocast
from ..._autograd.shared import sees_torch_functions_only
from ..._core.precision import is_autocast_on
from ...ops.cross_entropy import REDUCTIONS, cross_entropy, loss_of_rows
from ..fused_class import Fused, fused_class
from ..known import KnownFunctions, close
from ..source import Reader

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterator
    from types import FunctionType

    from ..forward_code import Outside

is_dynamo_compiling = torch.compiler.is_dynamo_compiling


def _of_torch(function: Any, owner: Any) -> Any:
    """A function where the code is that of torch's file; None where it was replaced before."""
    code = getattr(function, "__code__", None)
    return function if code is not None and code.co_filename == owner.__file__ else None


_torch_loss = _of_torch(F.cross_entropy, F)
_torch_forward = _of_torch(torch_nn.CrossEntropyLoss.forward, torch_nn.modules.loss)
TORCHS = tuple(one for one in (_torch_loss, torch_nn.CrossEntropyLoss) if one is not None)
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float64, torch.float32, *HALVES)


def plain(logits: Any, target: Any) -> bool:
    """Whether logits and target are tensors that our op takes, in code that is not traced."""
    if is_dynamo_compiling() or type(logits) is not Tensor or type(target) is not Tensor:
        return False
    if logits.dtype not in DTYPES or target.dtype is not torch.int64:
        return False
    if logits.layout is not torch.strided or target.layout is not torch.strided:
        return False
    device = logits.device
    if device != target.device or device.type not in ("cpu", "cuda"):
        return False
    return not sees_torch_functions_only()


# ---- torch's function and module ----


def torch_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """F.cross_entropy, by our op where it takes the arguments."""
    if (
        weight is None
        and size_average is None
        and reduce is None
        and plain(input, target)
        and _has_rows(input, target)
        and type(ignore_index) is int
        and type(reduction) is str
        and reduction in REDUCTIONS
        and 0 <= label_smoothing <= 1
    ):
        return cross_entropy(
            input,
            target,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )
    return _torch_loss(
        input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
    )


def _has_rows(logits: Tensor, target: Tensor) -> bool:
    """Whether logits have a row in memory for each target, which is a class."""
    dims = logits.dim()
    if dims == 0 or logits.shape[min(dims - 1, 1)] == 0:  # no classes: torch's errors
        return False
    if dims == 1:
        return bool(target.dim() == 0)
    if logits.shape[:1] + logits.shape[2:] != target.shape:
        return False
    return bool(dims == 2 or logits.movedim(1, -1).is_contiguous())


def _are_torchs() -> bool:
    """Whether torch's module and function are its own."""
    theirs = torch_nn.CrossEntropyLoss.forward is _torch_forward
    return theirs and F.cross_entropy is _torch_loss


class FusedCriterion(Fused):
    """Mixed into nn.CrossEntropyLoss."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss, by our op where torch's code is torch's own and the op takes the arguments."""
        if is_dynamo_compiling() or not _are_torchs():
            return super().forward(input, target)  # type: ignore[misc]
        options: Any = self
        return torch_cross_entropy(
            input,
            target,
            options.weight,
            ignore_index=options.ignore_index,
            reduction=options.reduction,
            label_smoothing=options.label_smoothing,
        )


_criterion = fused_class(FusedCriterion, torch_nn.CrossEntropyLoss)


def fuse_criterion(module: torch_nn.Module) -> bool:
    """Make an nn.CrossEntropyLoss run as our op, in place; whether it is one that did not."""
    if type(module) is not torch_nn.CrossEntropyLoss:
        return False
    module.__class__ = _criterion
    return True


class LossCalls:
    """Mixed into the class of a module whose methods form a cross entropy by torch's names."""

    def _fused_cross_entropy(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """function(...), by our op where it is torch's."""
        if function is _torch_loss and not is_dynamo_compiling():
            function = torch_cross_entropy
        return function(*args, **kwargs)

    def _fused_criterion(self, kind: Any, /, *args: Any, **kwargs: Any) -> Any:
        """kind(...), as our module where it is torch's."""
        if kind is torch_nn.CrossEntropyLoss and not is_dynamo_compiling():
            kind = _criterion
        return kind(*args, **kwargs)


def loss_method(value: Any, call: ast.Call) -> str | None:
    """The method that a call is written with; None where it stays."""
    if value is torch_nn.CrossEntropyLoss:
        return "_fused_criterion"
    return "_fused_cross_entropy" if value is _torch_loss else None


# ---- functions of logits and labels ----

_IGNORED = 100
# Batch, time and classes of probes, one of them longer than what a function may cut.
_LONG = ((_IGNORED + 3, 3, 4), (2, _IGNORED + 3, 4), (4, 3, _IGNORED + 3))
_NEEDED = ("logits", "labels", "vocab_size")
_ARGUMENTS = (*_NEEDED, "num_items_in_batch", "ignore_index", "shift_labels")
FUNCTIONS = frozenset({_torch_loss, F.pad, torch.is_tensor})
CALLS = {*FUNCTIONS, "float", "to", "view", "reshape", "flatten", "contiguous", "size", "dim",
          "numel"}  # fmt: skip


class LossForm(NamedTuple):
    """How a function of logits and labels forms a cross entropy."""

    by_position: tuple[str, ...]  # its arguments
    by_name: frozenset[str]
    named: frozenset[str]  # the arguments of all functions that it calls
    others: bool  # it takes arguments by other names too, and does nothing with them
    ignore_index: int  # its default
    shifted: bool  # a token's label is the next token's
    wide: bool  # half logits are converted to float32 first
    dtypes: tuple[torch.dtype, ...] = ()

    def of(self, given: dict[str, Any]) -> Tensor:
        """What the function gives, by our op."""
        logits, count = given["logits"], given.get("num_items_in_batch")
        ignored = given.get("ignore_index", self.ignore_index)
        labels = given.get("shift_labels")
        if labels is None:
            labels = given["labels"]
            if self.shifted:
                labels = F.pad(labels, (0, 1), value=ignored)[..., 1:]
        half = logits.dtype in HALVES
        loss = loss_of_rows(
            logits.view(-1, logits.shape[-1]),
            labels.reshape(-1),
            ignored,
            reduction="mean" if count is None else "sum",
            fp32_out=self.wide and half,
        )
        if count is None:
            return loss
        return loss / (count.to(loss.device) if isinstance(count, Tensor) else count)

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """A call's arguments by name, where the op stands for the function; else None."""
        given = dict(zip(self.by_position, args, strict=False))
        if len(args) > len(given) or not given.keys().isdisjoint(kwargs):
            return None
        for name, value in kwargs.items():
            if name in self.by_name:
                given[name] = value
            elif not self.others or name in self.named:
                return None
        if not given.keys() <= set(_ARGUMENTS) or not given.keys() >= set(_NEEDED):
            return None
        return given if self._takes(given) else None

    def _takes(self, given: dict[str, Any]) -> bool:
        logits, labels = given["logits"], given.get("shift_labels")
        copied = self.shifted and labels is None
        labels = given["labels"] if labels is None else labels
        if not plain(logits, labels) or logits.dtype not in self.dtypes:
            return False
        if logits.dim() != 3 or not logits.is_contiguous() or labels.shape != logits.shape[:2]:
            return False
        if not (copied or labels.is_contiguous()):  # the function may view them
            return False
        size, ignored = given["vocab_size"], given.get("ignore_index", self.ignore_index)
        if type(size) is not int or size != logits.shape[2] or type(ignored) is not int:
            return False
        count: Any = given.get("num_items_in_batch")
        if type(count) is Tensor:
            if count.dim() or count.requires_grad:
                return False
        elif count is not None and type(count) is not int:
            return False
        # NOTE: autocast leaves a loss alone that is formed in float32.
        return self.wide or not is_autocast_on(logits.device.type)


def _read(function: FunctionType) -> tuple[LossForm, Outside] | None:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if not set(_NEEDED) <= set(names):
        return None
    by_position = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    values = dict(zip(by_position[len(by_position) - len(defaults) :], defaults, strict=True))
    ignored = {**values, **(function.__kwdefaults__ or {})}.get("ignore_index", -100)
    if type(ignored) is not int:
        return None
    reader = Reader(torch_nn.Module(), FUNCTIONS)
    reader.read_function(function)
    if not reader.calls <= CALLS or not reader.numbers <= {0.0}:
        return None
    if not reader.integers <= {0, 1, 2, _IGNORED, abs(ignored)}:  # which might cut what is longer
        return None
    taken = frozenset(names[code.co_posonlyargcount :])
    more = (True, False) if code.co_flags & inspect.CO_VARKEYWORDS else (False,)
    forms = []
    for others, shifted, wide in itertools.product(more, (True, False), (True, False)):
        form = LossForm(
            by_position, taken, frozenset(reader.arguments), others, ignored, shifted, wide
        )
        dtypes = tuple(dtype for dtype in DTYPES if _agrees(function, form, dtype))
        forms.append(form._replace(dtypes=dtypes))
    best = max(forms, key=lambda form: len(form.dtypes))
    return (best, reader.outside) if torch.float32 in best.dtypes else None


def _probes(form: LossForm, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Arguments with labels that are ignored and others, in each combination that it takes."""
    names = form.by_name.union(form.by_position)
    values: dict[str, tuple[Any, ...]] = {
        "num_items_in_batch": (6, torch.tensor(6, device="cpu")),
        "ignore_index": (3,),
        "shift_labels": (True,),
    }
    choices = {name: (None, *values[name]) for name in values if name in names}
    for chosen in itertools.product(*choices.values()):
        more = {n: v for n, v in zip(choices, chosen, strict=True) if v is not None}
        yield _probe((3, 5, 7), form, dtype, more)
    if dtype is torch.float32:
        for size in _LONG:
            yield _probe(size, form, dtype, {})


def _probe(
    size: tuple[int, int, int], form: LossForm, dtype: torch.dtype, more: dict[str, Any]
) -> dict[str, Any]:
    random = torch.Generator().manual_seed(7)
    logits = torch.randn(*size, generator=random, dtype=torch.float64, device="cpu").to(dtype)
    given = {**more, "logits": logits, "vocab_size": size[2], "labels": None}
    for name in ("labels", "shift_labels"):
        if name in given:
            labels = torch.randint(size[2], size[:2], generator=random, device="cpu")
            labels[0, 2] = labels[1, -1] = more.get("ignore_index", form.ignore_index)
            given[name] = labels
    return given


def _agrees(function: FunctionType, form: LossForm, dtype: torch.dtype) -> bool:
    """Whether a function gives what the op does, and the gradients."""
    for given in _probes(form, dtype):
        logits = given["logits"].requires_grad_()
        more = {"_fused_other": object()} if form.others else {}
        theirs = functools.partial(function, **given, **more)
        if not losses_agree(logits, theirs, functools.partial(form.of, given)):
            return False
    return True


def losses_agree(logits: Tensor, theirs: Callable[[], Any], ours: Callable[[], Tensor]) -> bool:
    """Whether a loss of logits is what our op gives, and the gradients; not where it raises."""
    with no_autocast(logits):
        try:
            loss = theirs()
        except Exception:  # dtypes and shapes that it does not take, targets out of range
            return False
        of_op = ours()
        if not close(loss, of_op):
            return False
        grads = [torch.autograd.grad(3 * one, logits)[0] for one in (loss, of_op)]
        return close(*grads)


LOSS_FUNCTIONS = KnownFunctions(_read)


class LossFunction:
    """A function of logits and labels that is known, by our op where it takes the arguments."""

    def __init__(self, function: FunctionType) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """function(...)."""
        form = None if is_dynamo_compiling() else LOSS_FUNCTIONS.get(self.function)
        given = None if form is None else form.given(args, kwargs)
        return self.function(*args, **kwargs) if given is None else form.of(given)  # type: ignore[union-attr]
