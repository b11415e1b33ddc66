"""Leaf modules that are a norm or a product by what they compute, whatever their class.

Hugging Face's RMSNorms (Llama's, T5's, Gemma's with 1 + weight), subclasses of nn.LayerNorm,
transformers' Conv1D, torch_geometric's Linear: the source of the forward is read first, then a copy
is run on numbers and compared with our op, in each dtype, and so are gradients.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as torch_nn

from .._core.precision import is_autocast_on
from ..nn.linear import Linear
from ..nn.norm import LayerNorm, RMSNorm
from ..ops.linear import linear, matmul
from ..ops.norm import layer_norm, rms_norm
from .forward_code import RefusedError, same_constant
from .fused_class import Fused, fused_class
from .source import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .forward_code import Outside

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_any_autocast = torch._C._is_any_autocast_enabled

_HALF = (torch.bfloat16, torch.float16)
_PAIRS = (
    *((dtype, dtype) for dtype in (torch.float32, torch.float64, *_HALF)),
    *((dtype, torch.float32) for dtype in _HALF),
)
_RTOL = {torch.float64: 2e-5, torch.float32: 2e-5, torch.bfloat16: 0.03, torch.float16: 4e-3}


class Form(NamedTuple):
    """What a leaf module computes."""

    kind: str  # "rms_norm", "layer_norm", "linear" or "matmul" (its weight is (in, out))
    weight: str | None = None  # the names of its parameters
    bias: str | None = None
    eps: float = 0.0
    plus_one: bool = False  # 1 + weight is what scales
    channels_first: bool = False  # over dim 1 of four

    def of(self, module: Any, x: Tensor, residual: Tensor | None = None) -> Any:
        """The result, by our op; of a norm with a residual (y, x + residual)."""
        weight: Any = None if self.weight is None else _parameter(module, self.weight)
        bias = None if self.bias is None else _parameter(module, self.bias)
        if self.kind == "linear":
            return linear(x, weight, bias)
        if self.kind == "matmul":
            flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
            return matmul(flat, weight, bias).view(*x.shape[:-1], weight.shape[1])
        if self.plus_one:
            weight = (weight.float() if weight.dtype in _HALF else weight) + 1.0
        if self.channels_first:
            x = x.permute(0, 2, 3, 1)
        if self.kind == "rms_norm":
            y: Any = rms_norm(x, (x.size(-1),), weight, self.eps, residual=residual)
        else:
            if self.plus_one and bias is not None:
                bias = bias.to(weight.dtype)
            y = layer_norm(x, (x.size(-1),), weight, bias, self.eps, residual=residual)
        return y.permute(0, 3, 1, 2) if self.channels_first else y


def _parameter(module: Any, name: str) -> Any:
    """module.name, which nn.Module looks for in Python only where it is no parameter."""
    found = module._parameters.get(name)
    return getattr(module, name) if found is None else found


def _reference(form: Form, x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
    """The same in torch's functions, on float64."""
    if form.kind == "linear":
        return F.linear(x, weight, bias)
    if form.kind == "matmul":
        y: Tensor = x @ weight
        return y if bias is None else y + bias
    if form.channels_first:
        x = x.permute(0, 2, 3, 1)
    if form.kind == "layer_norm":
        x = x - x.mean(-1, keepdim=True)
    y = x * (x.square().mean(-1, keepdim=True) + form.eps).rsqrt()
    if weight is not None:
        y = y * (weight + 1.0 if form.plus_one else weight)
    y = y if bias is None else y + bias
    return y.permute(0, 3, 1, 2) if form.channels_first else y


# ---- probing ----


class _Probe:
    """A copy of a module on the CPU with random parameters, and its results."""

    def __init__(self, module: torch_nn.Module) -> None:
        self.copy = copy.copy(module)  # NOTE: not deep; a leaf whose parameters are replaced
        vars(self.copy)["_parameters"] = {}
        for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks",
                      "_backward_pre_hooks"):  # fmt: skip
            vars(self.copy)[hooks] = {}
        self.forward = type(module).forward
        generator = torch.Generator("cpu").manual_seed(0)
        self.generator = generator
        self.values = {
            name: torch.randn(
                parameter.shape, generator=generator, dtype=torch.float64, device="cpu"
            )
            for name, parameter in module._parameters.items()
            if parameter is not None
        }
        self.names = dict.fromkeys(module._parameters)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64, device="cpu")

    def run(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, dict[str, Any]]:
        """The result and the parameters of the dtype."""
        made = {name: torch_nn.Parameter(value.to(dtype)) for name, value in self.values.items()}
        parameters: dict[str, Any] = {name: made.get(name) for name in self.names}
        vars(self.copy)["_parameters"] = parameters
        before = x.detach().clone()
        y = self.forward(self.copy, x)
        if not isinstance(y, Tensor):
            raise RefusedError("returns no tensor")
        if not torch.equal(before, x.detach()) or y.data_ptr() == x.data_ptr():
            raise RefusedError("changes or returns its input")
        return y, made


def _rows(probe: _Probe, *shape: int, small: float = 1e-6) -> Tensor:
    """Random rows with a mean, of which some are small: eps shows there."""
    x = probe.random(*shape) + 0.5
    scale = torch.tensor([1.0, 30.0, 2e-3, small], dtype=torch.float64, device="cpu")
    return x * scale[[i % 4 for i in range(x.shape[0])]].view(-1, *[1] * (x.dim() - 1))


def _close(y: Tensor, want: Tensor, dtype: torch.dtype) -> bool:
    # NOTE: the largest value of each row is what roundings are measured by.
    if y.shape != want.shape:
        return False
    rows = want.shape[0]
    error = (y.double() - want).abs().reshape(rows, -1).amax(1)
    return bool((error <= _RTOL[dtype] * want.abs().reshape(rows, -1).amax(1) + 1e-12).all())


def _agrees(probe: _Probe, form: Form, x: Tensor, dtype: torch.dtype, wide: torch.dtype) -> bool:
    """Whether the module gives the form's values on x in a dtype, with parameters of another."""
    x = x.to(dtype)
    y, made = probe.run(x, wide)
    return y.dtype is dtype and _by_value([form], x, y, made, dtype) is not None


def _same_gradients(probe: _Probe, form: Form, x: Tensor) -> bool:
    """Whether gradients flow as through the form, and memory lies as our op lays it."""
    x = x.float().requires_grad_()
    y, made = probe.run(x, torch.float32)
    ours = form.of(probe.copy, x)
    if y.stride() != ours.stride() or not y.requires_grad:
        return False
    dy = probe.random(*y.shape).float()
    inputs = [x, *made.values()]
    theirs = torch.autograd.grad(y, inputs, dy, allow_unused=True)
    mine = torch.autograd.grad(ours, inputs, dy, allow_unused=True)
    for a, b in zip(theirs, mine, strict=True):
        if (a is None) != (b is None):
            return False
        if a is not None and not torch.allclose(a, b, rtol=1e-3, atol=1e-4 * float(a.abs().max())):
            return False
    return True


def _with_eps(form: Form, numbers: set[float]) -> list[Form]:
    """The form with each eps that the code holds."""
    small = sorted(n for n in numbers if 0.0 <= n < 0.1)
    return [form._replace(eps=eps) for eps in small]


@dataclass(frozen=True)
class Leaf:
    """What a leaf module was found to compute, and what that holds for."""

    form: Form
    pairs: frozenset[tuple[torch.dtype, torch.dtype | None]]  # dtypes of x and of the weight
    dims: frozenset[int]  # of x
    input: str  # the name of x
    size: int | None  # of x's normalised dim
    in_autocast: bool  # the code is torch's own function, which autocast knows
    absent: tuple[str, ...]  # parameters that are None
    flags: tuple[tuple[str, Any], ...]
    methods: tuple[str, ...]
    outside: Outside | None

    def is_same(self, module: Any) -> bool:
        """Whether the module's own forward would still compute the form."""
        if self.outside is None or "forward" in module.__dict__ or not self.outside.is_same():
            return False
        for name, value in self.flags:
            now = getattr(module, name, None)
            if now is not value and not same_constant(now, value):
                return False
        for name in self.absent:
            if module._parameters.get(name) is not None:
                return False
        for name in self.methods:  # noqa: SIM110  (written out: each call asks)
            if name in module.__dict__:
                return False
        return True


def _candidates(probe: _Probe, reader: Reader) -> Iterator[tuple[Form, int]]:
    """Forms that the module's parameters fit, with the size of x's last dim."""
    shapes = {name: tuple(value.shape) for name, value in probe.values.items()}
    matrices = [name for name, shape in shapes.items() if len(shape) == 2]
    vectors = [name for name, shape in shapes.items() if len(shape) == 1]
    if len(matrices) == 1 and len(vectors) < 2:
        bias = vectors[0] if vectors else None
        rows, columns = shapes[matrices[0]]
        if bias is None or shapes[bias] == (rows,):
            yield Form("linear", matrices[0], bias), columns
        if bias is None or shapes[bias] == (columns,):
            yield Form("matmul", matrices[0], bias), rows
        return
    if matrices or len(vectors) != len(shapes) or len(vectors) > 2:
        return
    if len({shapes[name] for name in vectors}) > 1:
        return
    normalized = reader.flags.get("normalized_shape")
    if vectors:
        size = shapes[vectors[0]][0]
    else:
        size = normalized[0] if isinstance(normalized, tuple) and len(normalized) == 1 else 24
    named = sorted(vectors, key=lambda name: "bias" in name or "beta" in name)
    weight = named[0] if named else None
    for bias in (named[1],) if len(named) == 2 else (None,):
        for plus_one in (False, True) if weight is not None else (False,):
            for kind in ("rms_norm", "layer_norm"):
                yield Form(kind, weight, bias, plus_one=plus_one), size


def _shapes(form: Form, size: int) -> dict[int, tuple[int, ...]]:
    if form.channels_first:
        return {4: (4, size, 2, 3)}
    return {dims: (4, *[2] * (dims - 2), size) for dims in (2, 3, 4)}


def _match(probe: _Probe, reader: Reader) -> tuple[Form, int, frozenset[int]] | None:
    """The form whose values the module gives, and for which numbers of dims it does."""
    for plain, size in _candidates(probe, reader):
        if size < 2:
            continue
        norm = plain.kind.endswith("norm")
        for form in [plain, plain._replace(channels_first=True)] if norm else [plain]:
            with_eps = _with_eps(form, reader.numbers) if norm else [form]
            for dims, shape in _shapes(form, size).items():
                x = _rows(probe, *shape).float()
                try:
                    y, made = probe.run(x, torch.float32)
                except (RuntimeError, TypeError, ValueError, IndexError):
                    continue
                found = _by_value(with_eps, x, y, made)
                if found is None:
                    continue
                shapes = _shapes(found, size)
                fits = {n for n, s in shapes.items() if n == dims or _fits(probe, found, s)}
                return found, size, frozenset(fits)
    return None


def _fits(probe: _Probe, form: Form, shape: tuple[int, ...]) -> bool:
    try:
        return _agrees(probe, form, _rows(probe, *shape), torch.float32, torch.float32)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False


def _by_value(
    forms: list[Form],
    x: Tensor,
    y: Tensor,
    made: dict[str, Tensor],
    dtype: torch.dtype = torch.float32,
) -> Form | None:
    """The form whose values these are, to the roundings of a dtype."""
    values = {name: p.detach().double() for name, p in made.items()}
    for form in forms:
        weight = None if form.weight is None else values[form.weight]
        bias = None if form.bias is None else values[form.bias]
        if _close(y, _reference(form, x.double(), weight, bias), dtype):
            return form
    return None


_NORMALISE = {F.layer_norm, F.rms_norm, torch.rsqrt, torch.sqrt, "rsqrt", "sqrt", "pow"}
_PRODUCTS = {
    F.linear, torch_nn.Linear.forward, torch.addmm, torch.matmul, torch.mm, "matmul", "view",
    "reshape", "size", "dim", "t", "transpose", "flatten",
}  # fmt: skip
_SMOOTH = {  # what probe values on a few rows tell from all else
    "to", "float", "double", "half", "bfloat16", "type", "type_as", "pow", "square", "mean", "var",
    "sqrt", "rsqrt", "sum", "mul", "add", "sub", "div", "neg", "reciprocal", "view", "reshape",
    "size", "dim", "permute", "transpose", "contiguous", "unsqueeze", "squeeze", "expand",
    "flatten", "movedim", "numel", "view_as", "is_floating_point",
    torch.pow, torch.square, torch.mean, torch.var, torch.var_mean, torch.sqrt, torch.rsqrt,
    torch.sum, torch.add, torch.sub, torch.mul, torch.div, torch.neg, torch.reciprocal,
    torch.rms_norm, torch.layer_norm, torch.finfo, torch.jit.is_scripting, torch.jit.is_tracing,
    F.layer_norm, F.rms_norm, torch_nn.LayerNorm.forward, torch_nn.RMSNorm.forward,
}  # fmt: skip
_TORCHS = {
    F.layer_norm, F.rms_norm, torch_nn.LayerNorm.forward, torch_nn.RMSNorm.forward, "permute",
}  # fmt: skip


def _input_name(module: torch_nn.Module) -> str:
    names = type(module).forward.__code__.co_varnames
    return str(names[1]) if len(names) > 1 else ""


def _recognise(module: torch_nn.Module) -> Leaf:
    """What a leaf module computes.

    Raises:
        RefusedError: Nothing of ours, or not surely.
    """
    reader = Reader(module)
    reader.read()
    if not module._parameters and not reader.calls & _NORMALISE:
        raise RefusedError("computes no norm")
    probe = _Probe(module)
    found = _match(probe, reader)
    if found is None:
        raise RefusedError("computes something else, as probe values show")
    form, size, dims = found
    known = _PRODUCTS if form.kind in ("linear", "matmul") else _SMOOTH
    if not reader.calls <= known:
        raise RefusedError("calls more than a norm or a product does")
    shape = _shapes(form, size)[min(dims)]
    x = _rows(probe, *shape, small=0.1)
    if not _same_gradients(probe, form, x):
        raise RefusedError("has other gradients or strides, as probe values show")
    pairs: set[tuple[torch.dtype, torch.dtype | None]] = set()
    for dtype, wide in _PAIRS:
        if form.kind in ("linear", "matmul") and dtype is not wide:
            continue
        try:
            if _agrees(probe, form, x, dtype, wide):
                pairs.add((dtype, wide if form.weight is not None else None))
        except (RuntimeError, TypeError):  # dtypes that the module does not take
            continue
    return Leaf(
        form,
        frozenset(pairs),
        dims,
        _input_name(module),
        None if form.weight is None and "normalized_shape" not in reader.flags else size,
        reader.calls <= _TORCHS,
        tuple(name for name, p in module._parameters.items() if p is None),
        tuple(reader.flags.items()),
        tuple(reader.methods),
        reader.outside,
    )


# ---- execution ----


class FusedLeaf(Fused):
    """Mixed into the class of a norm or product: the same object, its forward our op.

    Its own forward runs for what was not probed (other dtypes, other arguments), under
    torch.compile (whose graph pass finds it) and after what its code refers to was replaced.
    """

    _fused: Leaf | None = None
    _base: Any

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original forward's result."""
        leaf = self._fused
        if leaf is None or _is_dynamo_compiling() or len(args) + len(kwargs) != 1:
            return self._base.forward(self, *args, **kwargs)
        x = args[0] if args else kwargs.get(leaf.input)
        if not isinstance(x, Tensor) or not takes(leaf, self, x) or not leaf.is_same(self):
            return self._base.forward(self, *args, **kwargs)
        return leaf.form.of(self, x)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        if self._fused is not None and self._fused.outside is None:
            kind, self.__class__ = type(self), self._base
            del self._fused
            if not kind._fuse_again(self):
                self.__class__ = kind

    def _fuse_again(self) -> bool:
        return fuse_leaf(self) is None


def _in_autocast(x: Tensor) -> bool:
    return bool(_any_autocast() and is_autocast_on(x.device.type))


def held(module: Any, name: str) -> Any:
    """A parameter, or the tensor that an instance has in the place of one."""
    parameter = module._parameters.get(name)
    return module.__dict__.get(name) if parameter is None else parameter


def _densest_last(x: Tensor) -> bool:
    """Whether what torch's pointwise functions make of a tensor is contiguous."""
    if x.is_contiguous():
        return True
    strides = x.stride()
    return 0 not in strides and all(a >= b for a, b in pairwise(strides))


def takes(leaf: Leaf, module: Any, x: Tensor) -> bool:
    """Whether the op stands for the module on an input."""
    form = leaf.form
    # NOTE: a weight that is computed on each read (parametrize) is the module's own affair.
    weight = None if form.weight is None else held(module, form.weight)
    if form.weight is not None and not isinstance(weight, Tensor):
        return False
    if x.dim() not in leaf.dims or type(x) not in (Tensor, torch_nn.Parameter):
        return False
    if form.kind in ("linear", "matmul"):
        return bool(x.is_floating_point())  # the op's own checks and autocast are F.linear's
    if (x.dtype, None if weight is None else weight.dtype) not in leaf.pairs:
        return False
    if leaf.size is not None and x.shape[1 if form.channels_first else -1] != leaf.size:
        return False
    # NOTE: what autocast makes of pow, mean and the like on a half x is the code's own affair.
    if leaf.in_autocast:
        return True
    if not _densest_last(x):
        return False
    return x.dtype not in _HALF or not _in_autocast(x)


_OURS = (Linear, LayerNorm, RMSNorm)
_EXACT = (torch_nn.Linear, torch_nn.LayerNorm, torch_nn.RMSNorm, *_OURS)


def may_be_leaf(module: torch_nn.Module) -> bool:
    """Whether a module has the parameters of a norm or a linear layer and nothing else."""
    kind = type(module)
    if kind in _EXACT or kind.__module__.startswith("torch.nn.") or isinstance(module, FusedLeaf):
        return False
    if module._modules or any(b is not None for b in module._buffers.values()):
        return False
    parameters = [p for p in module._parameters.values() if p is not None]
    if len(parameters) > 2 or any(type(p) is not torch_nn.Parameter for p in parameters):
        return False
    return all(p.dim() in (1, 2) and p.is_floating_point() for p in parameters)


def fuse_leaf(
    module: torch_nn.Module,
    recognise: Callable[[torch_nn.Module], Leaf] = _recognise,
    mixin: type[FusedLeaf] = FusedLeaf,
) -> str | None:
    """Make a module that computes a norm or a product run as our op, in place.

    Args:
        module: A module without others inside.
        recognise: Finds what it computes, or raises a RefusedError.
        mixin: Runs what was found.

    Returns:
        None where it does now, else the reason why it stays what it is.
    """
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    try:
        # NOTE: gradients on and autocast off, whatever holds around fuse.
        autocast = torch.autocast("cpu", enabled=False)
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), autocast:
            leaf = recognise(module)
        kind = fused_class(mixin, type(module))
    except RefusedError as reason:
        return str(reason)
    except Exception as error:  # the class and its code may raise anything
        return f"raises {type(error).__name__} on probe values"
    vars(module)["_fused"] = leaf
    module.__class__ = kind
    return None
