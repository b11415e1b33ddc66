"""Rotary embeddings in methods: functions that rotate query and key, as one op.

A method that calls such a function (``apply_rotary_pos_emb`` of Hugging Face's models) is written
anew with the call through the module, which is handed the function itself: another one that the
name stands for by then is called as it is. A function counts as one by its source, which may do
nothing but compute, and by its values and gradients on probes, not by its name.
"""

from __future__ import annotations

import ast
import copy
import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch import nn as torch_nn

from .._autograd.compose import no_autocast
from ..ops.rope import rope
from .fused_class import Fused, derived
from .fused_methods import _guarded, _has_layers, _own_methods
from .recompile import asks_class, compiled, is_plain, rewrapped, unwrapped
from .source import Reader, is_ordinary, tree_of

if TYPE_CHECKING:
    from .forward_code import Outside

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled
_any_autocast = torch._C._is_any_autocast_enabled

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_ARGUMENTS = 4  # q, k, cos, sin


class Form(NamedTuple):
    """How a function rotates."""

    heads_dim: int
    interleaved: bool
    first_half: bool  # it reads the first half of the tables' columns alone
    partial: bool = False  # it takes tables narrower than a row
    dtypes: tuple[torch.dtype, ...] = ()

    def of(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """What the function gives, by our op."""
        width = cos.shape[-1]
        if self.first_half:
            cos, sin = cos[..., : width // 2], sin[..., : width // 2]
        how: dict[str, Any] = {"interleaved": self.interleaved, "unsqueeze_dim": self.heads_dim}
        rotated: tuple[Tensor, Tensor] = rope(q, k, cos, sin, rotary_dim=width, **how)
        return rotated

    def takes(self, q: Any, k: Any, cos: Any, sin: Any) -> bool:
        """Whether the op stands for the function on these arguments."""
        dtype = q.dtype if type(q) is Tensor else None
        if dtype not in self.dtypes:
            return False
        for t in (k, cos, sin):
            if type(t) is not Tensor or t.dtype is not dtype or t.device != q.device:
                return False
        shape, other, table = q.shape, k.shape, cos.shape
        if len(shape) != 4 or len(other) != 4 or len(table) != 3 or sin.shape != table:
            return False
        time, d, width = shape[3 - self.heads_dim], shape[3], table[2]
        if other[0] != shape[0] or other[3 - self.heads_dim] != time or other[3] != d:
            return False
        if table[0] not in (1, shape[0]) or table[1] != time:
            return False
        if width % 2 or not (2 <= width < d if self.partial and width != d else width == d):
            return False
        if _is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
            return False
        # NOTE: what autocast makes of the function's own code is not on the probes.
        return not (_any_autocast() and torch.is_autocast_enabled(q.device.type))


class Rotation(NamedTuple):
    """A function that rotates, and what it was found with."""

    form: Form
    outside: Outside
    made_of: tuple[Any, ...]

    def is_same(self, function: FunctionType) -> bool:
        return _parts(function) == self.made_of and self.outside.is_same()


def _parts(function: FunctionType) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


_known: weakref.WeakKeyDictionary[Any, Rotation] = weakref.WeakKeyDictionary()


# ---- which functions ----


def rotation_of(function: Any) -> Rotation | None:
    """A function as a rotation; None where it is none."""
    if type(function) is not FunctionType:
        return None
    known = _known.get(function)
    if known is None or not known.is_same(function):
        _known.pop(function, None)
        known = _read(function)
        if known is not None:
            _known[function] = known
    return known


def _read(function: FunctionType) -> Rotation | None:
    code = function.__code__
    required = code.co_argcount - len(function.__defaults__ or ())
    if required > _ARGUMENTS or code.co_argcount < _ARGUMENTS or code.co_kwonlyargcount:
        return None
    reader = Reader(torch_nn.Module())
    try:
        reader.read_function(function)
        form = _form(function)
    except Exception:  # a RefusedError, or whatever the function raises on probes
        return None
    return None if form is None else Rotation(form, reader.outside, _parts(function))


def _form(function: FunctionType) -> Form | None:
    for heads_dim in (1, 2):
        for interleaved in (False, True):
            for first_half in (False, True):
                form = Form(heads_dim, interleaved, first_half)
                if not _agrees(function, form, torch.float32, 8):
                    continue
                dtypes = tuple(d for d in _DTYPES if _agrees(function, form, d, 8))
                partial = all(_agrees(function, form, d, 4) for d in dtypes)
                return form._replace(partial=partial, dtypes=dtypes)
    return None


def _probes(form: Form, dtype: torch.dtype, width: int, batch: int) -> list[Tensor]:
    """q, k of rows of 8, cos, sin: numbers without any symmetry."""
    random = torch.Generator().manual_seed(width + batch)
    shapes = [[2, 4, 5, 8], [2, 3, 5, 8], [batch, 5, width], [batch, 5, width]]
    if form.heads_dim == 2:
        shapes[:2] = [[2, 5, 4, 8], [2, 5, 3, 8]]
    return [
        torch.randn(s, generator=random, dtype=torch.float64, device="cpu").to(dtype)
        for s in shapes
    ]


def _agrees(function: FunctionType, form: Form, dtype: torch.dtype, width: int) -> bool:
    """Whether a function gives what the op does, and the gradients."""
    for batch in (2, 1):
        with torch.inference_mode(False), torch.enable_grad():
            q, k, cos, sin = _probes(form, dtype, width, batch)
            q.requires_grad_(), k.requires_grad_()
            with no_autocast(q):
                try:
                    theirs = function(q, k, cos, sin)
                except Exception:  # shapes that it does not take
                    return False
                ours = form.of(q, k, cos, sin)
                if type(theirs) is not tuple or len(theirs) != 2:
                    return False
                if not all(_close(a, b) for a, b in zip(theirs, ours, strict=True)):
                    return False
                dy = [t.detach().flip(-1) for t in ours]
                grads = [torch.autograd.grad(y, (q, k), dy) for y in (theirs, ours)]
                if not all(_close(a, b) for a, b in zip(*grads, strict=True)):
                    return False
    return True


def _close(theirs: Any, ours: Tensor) -> bool:
    """Whether a result is ours but for a few roundings."""
    if type(theirs) is not Tensor or theirs.shape != ours.shape or theirs.dtype is not ours.dtype:
        return False
    difference = (theirs.double() - ours.double()).abs().max()
    return bool(difference <= 4 * torch.finfo(ours.dtype).eps * ours.double().abs().max())


# ---- the class ----


class FusedRotary(Fused):
    """Mixed into the class of a module whose methods rotate query and key by a function."""

    _base: Any

    def _fused_rotate(self, function: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
        """function(q, k, cos, sin), as one op where it is one."""
        if not _is_dynamo_compiling() and type(function) is FunctionType:
            known = _known.get(function)
            if known is not None and known.form.takes(q, k, cos, sin) and known.is_same(function):
                return known.form.of(q, k, cos, sin)
        return function(q, k, cos, sin)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self.__class__ = self._base
        fuse_rotary(self)


class _Calls(ast.NodeTransformer):
    """Finds calls of names with four arguments, and writes those of chosen names anew."""

    def __init__(self, tree: ast.FunctionDef, chosen: frozenset[str] = frozenset()) -> None:
        self.me = (*tree.args.posonlyargs, *tree.args.args)[0].arg
        self.chosen = chosen
        self.found: set[str] = set()
        for statement in tree.body:
            self.visit(statement)

    def visit(self, node: ast.AST) -> Any:
        inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.ListComp,
                 ast.SetComp, ast.DictComp, ast.GeneratorExp)  # fmt: skip
        return node if isinstance(node, inner) else super().visit(node)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        plain = not node.keywords and not any(isinstance(a, ast.Starred) for a in node.args)
        if not isinstance(node.func, ast.Name) or len(node.args) != _ARGUMENTS or not plain:
            return node
        self.found.add(node.func.id)
        if node.func.id in self.chosen:
            method = ast.Attribute(ast.Name(self.me, ast.Load()), "_fused_rotate", ast.Load())
            node.args.insert(0, node.func)
            node.func = ast.copy_location(method, node.args[0])
        return node


Found = tuple[tuple[str, tuple[str, ...]], ...]  # (method, names of functions in it)
_classes: dict[Any, type | None] = {}


def _found(kind: type, own: Any) -> Found:
    """The methods of a class that rotate; none where one asks for the module's class."""
    found = []
    for name, value in _own_methods(kind):
        function = unwrapped(value)[-1]
        if type(function) is not FunctionType or name in own:
            continue
        tree = tree_of(function)
        if tree is not None and asks_class(tree):
            return ()
        if tree is None or not is_plain(tree):
            continue
        code = function.__code__
        local = {*code.co_varnames, *code.co_freevars, *code.co_cellvars}
        names = sorted(
            n for n in _Calls(copy.deepcopy(tree)).found - local
            if rotation_of(function.__globals__.get(n)) is not None
        )  # fmt: skip
        if names:
            found.append((name, tuple(names)))
    return tuple(found)


def _rotary_class(base: type, found: Found) -> type | None:
    """The class of modules of a class whose methods rotate so; None where it cannot be written."""
    key = (base, found)
    if key not in _classes:
        made: dict[str, Any] | None = {}
        for name, names in found:
            layers = unwrapped(getattr(base, name))
            tree = copy.deepcopy(tree_of(layers[-1]))
            assert tree is not None
            _Calls(tree, frozenset(names))
            new = compiled(layers[-1], ast.fix_missing_locations(tree))
            method = None if new is None else rewrapped(layers, new)
            if method is None:
                made = None
                break
            made[name] = _guarded(name, layers[0], method)  # type: ignore[index]
        _classes[key] = None if made is None else derived(FusedRotary, base, **made)
    return _classes[key]


def fuse_rotary(module: torch_nn.Module) -> Found:
    """Make rotary embeddings in a module's methods run as one op, in place.

    Returns:
        The methods, with the names of the functions that rotate in them.
    """
    kind = type(module)
    special = (torch_nn.Sequential, torch_nn.ModuleList, Fused)
    if isinstance(module, special) or kind.__module__.startswith("torch.nn."):
        return ()
    if not is_ordinary(module, call=False) or not _has_layers(module):
        return ()
    found = _found(kind, vars(module))
    new = _rotary_class(kind, found) if found else None
    if new is None:
        return ()
    module.__class__ = new
    return found
