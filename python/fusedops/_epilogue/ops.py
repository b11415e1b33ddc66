"""The two ops of epilogues of one's own. What is computed is an argument, as text: a graph that was
compiled, exported or cached elsewhere means the same in every process."""

from __future__ import annotations

import ctypes
import functools
import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .derive import derive
from .graph import ACCUMULATOR, BEHIND, Builder, Node, evaluate, order
from .run import ELEMENTS, Program
from .visitor import COLUMN, FULL, NUMBER, ROW

if TYPE_CHECKING:
    from collections.abc import Sequence

_MULTIPLE = 8  # of K and N, for copies of 16 bytes
_library = torch.library.Library("fusedops_epilogue", "DEF")


# ---- programs as text ----


def nodes_to_text(output: Node) -> str:
    """The nodes of an expression, each naming those before it."""
    nodes = order([output])
    places = {id(node): place for place, node in enumerate(nodes)}
    return json.dumps([[n.op, [places[id(arg)] for arg in n.args], n.value] for n in nodes])


def to_text(nodes: str, operands: Sequence[tuple[str, str, int]], unfused: bool) -> str:
    """A program: nodes_to_text's text, the operands' names, kinds and sizes, and who runs it."""
    # NOTE: torch.compile traces this, and knows no json.
    listed = ", ".join([f'["{name}", "{kind}", {size}]' for name, kind, size in operands])
    way = "true" if unfused else "false"
    return f'{{"nodes": {nodes}, "operands": [{listed}], "unfused": {way}}}'


@functools.lru_cache(maxsize=256)
def from_text(text: str) -> tuple[Program, bool]:
    """A program of to_text, with its backward, and whether torch's ops run it."""
    said, builder = json.loads(text), Builder()
    nodes: list[Node] = []
    for op, args, value in said["nodes"]:
        nodes.append(builder.node(op, tuple(nodes[place] for place in args), value))
    operands = tuple((name, kind, size) for name, kind, size in said["operands"])
    names = (ACCUMULATOR, *(name for name, kind, _ in operands if kind != NUMBER))
    gradients = derive(builder, nodes[-1], names)
    return Program(nodes[-1], gradients, operands), said["unfused"]


# ---- checks of a GPU's way ----


def _refuse(x: Tensor, weight: Tensor) -> str:
    """Why the kernels do not take a product, or nothing."""
    (m, k), n = x.shape, weight.shape[0]
    if x.dtype not in ELEMENTS:
        return f"the kernels take float16 and bfloat16; got {x.dtype}"
    if k == 0 or k % _MULTIPLE or n % _MULTIPLE:
        return f"K and N must be multiples of {_MULTIPLE}; got K {k}, N {n}"
    if max(m, n, k) >= 2**31:
        return f"M, N and K must be below 2**31; got {m}, {n}, {k}"
    return "" if _is_hopper(x.get_device()) else "the kernels are for Hopper GPUs (sm_90a)"


@functools.cache
def _is_hopper(device: int) -> bool:
    return bool(torch.cuda.get_device_capability(device)[0] == 9)


def _on_gpu(tensor: Tensor) -> bool:
    return bool(tensor.is_cuda)


def _aligned(tensor: Tensor) -> Tensor:
    """Contiguous, at a multiple of 16 bytes."""
    if tensor.is_contiguous() and tensor.data_ptr() % 16 == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _ready(values: Sequence[Tensor | float]) -> list[Tensor | float]:
    """As the kernels take them: tensors that lie well, and what float32 makes of numbers."""
    return [_aligned(v) if isinstance(v, Tensor) else ctypes.c_float(v).value for v in values]


def _values(
    program: Program, operands: Sequence[Tensor], numbers: Sequence[float]
) -> list[Tensor | float]:
    """The operands' values in the order of the program."""
    tensors, plain = iter(operands), iter(numbers)
    return [next(plain) if kind == NUMBER else next(tensors) for _, kind, _ in program.operands]


def _by_name(program: Program, acc: Tensor, values: Sequence[Tensor | float]) -> dict[str, Any]:
    names = (name for name, _, _ in program.operands)
    return {ACCUMULATOR: acc, **dict(zip(names, values, strict=True))}


def _wide_by_name(
    program: Program, acc: Tensor, values: Sequence[Tensor | float]
) -> dict[str, Tensor]:
    """In the type of acc, which is computed in."""
    return {
        name: value.to(acc.dtype) if isinstance(value, Tensor) else acc.new_tensor(value)
        for name, value in _by_name(program, acc, values).items()
    }


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


# ---- forward ----


def _forward(
    x: Tensor,
    weight: Tensor,
    operands: list[Tensor],
    numbers: list[float],
    program: str,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """The result (M, N), and the product before it, or with keep false an empty tensor."""
    compiled, unfused = from_text(program)
    values = _values(compiled, operands, numbers)
    if unfused or not _on_gpu(x):
        acc = torch.nn.functional.linear(x.to(_wide(x.dtype)), weight.to(_wide(x.dtype)))
        (y,) = evaluate([compiled.output], _wide_by_name(compiled, acc, values))
        y = y.expand(acc.shape)
        # NOTE: backward starts from what a GPU keeps, the sums in the operands' type.
        return y.to(x.dtype), acc.to(x.dtype, copy=True) if keep else x.new_empty(0)
    if why := _refuse(x, weight):
        raise RuntimeError(
            f"epilogue: {why}; fusedops.epilogue(function, unfused=True) runs it by torch's ops"
        )
    y, sums = compiled.run(_aligned(x), _aligned(weight), _ready(values), keep)
    return y, x.new_empty(0) if sums is None else sums


def _forward_fake(
    x: Tensor,
    weight: Tensor,
    operands: list[Tensor],
    numbers: list[float],
    program: str,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    shape = (x.shape[0], weight.shape[0])
    return x.new_empty(shape), x.new_empty(shape if keep else (0,))


# ---- backward ----


def _backward(
    dy: Tensor,
    acc: Tensor,
    operands: list[Tensor],
    numbers: list[float],
    program: str,
    names: str,
) -> list[Tensor]:
    """The gradients of `names`, comma-separated: of acc (M, N), or operands in their shapes."""
    compiled, unfused = from_text(program)
    values, wanted = _values(compiled, operands, numbers), names.split(",")
    like = _by_name(compiled, acc, values)
    kinds = {ACCUMULATOR: FULL, **{name: kind for name, kind, _ in compiled.operands}}
    if not unfused and _on_gpu(acc) and acc.numel() > 0:
        found = compiled.run_backward(_aligned(dy), acc, _ready(values), wanted)
    else:
        wide = _wide_by_name(compiled, acc.to(_wide(acc.dtype)), values)
        wide[BEHIND] = dy.to(_wide(acc.dtype))
        found = evaluate([compiled.gradients[name] for name in wanted], wide)
        found = [
            _reduced(t.expand(acc.shape), kinds[n]) for n, t in zip(wanted, found, strict=True)
        ]
    pairs = zip(wanted, found, strict=True)
    return [t.to(like[n].dtype).contiguous() for n, t in pairs]


def _reduced(gradient: Tensor, kind: str) -> Tensor:
    if kind == COLUMN:
        return gradient.sum(0)
    return gradient.sum(1, keepdim=True) if kind == ROW else gradient.clone()


def _backward_fake(
    dy: Tensor,
    acc: Tensor,
    operands: list[Tensor],
    numbers: list[float],
    program: str,
    names: str,
) -> list[Tensor]:
    compiled, _ = from_text(program)
    like = _by_name(compiled, acc, _values(compiled, operands, numbers))
    return [like[name].new_empty(like[name].shape) for name in names.split(",")]


# ---- registration ----

# NOTE: not torch.library.custom_op, whose Python around every call takes as long as all of ours.
for _schema, _function, _fake in (
    (
        "forward(Tensor x, Tensor weight, Tensor[] operands, float[] numbers, str program, "
        "bool keep) -> (Tensor, Tensor)",
        _forward,
        _forward_fake,
    ),
    (
        "backward(Tensor dy, Tensor acc, Tensor[] operands, float[] numbers, str program, "
        "str names) -> Tensor[]",
        _backward,
        _backward_fake,
    ),
):
    _name = _schema.split("(")[0]
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fusedops_epilogue::{_name}", _fake, lib=_library)
