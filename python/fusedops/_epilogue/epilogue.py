"""What a user holds: an expression with its derived backward, and operands for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers torch.ops.fusedops and its fakes)
from .._autograd.main_grad import accumulate, main_grad_owner
from .derive import derive
from .graph import ACCUMULATOR, BEHIND
from .ops import nodes_to_text, to_text
from .trace import trace
from .visitor import COLUMN, FULL, NUMBER, ROW, kernel_text

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST = {FULL: 4, COLUMN: 6, ROW: 6, NUMBER: 8}  # rows and columns together: visitor_abi.h


class Epilogue:
    """An epilogue of one's own, made by `fusedops.epilogue`; calling it gives it its operands."""

    def __init__(self, function: Callable[..., Any], unfused: bool = False) -> None:
        builder, self._output, self.operands = trace(function)
        self._gradients = derive(builder, self._output, (ACCUMULATOR, *self.operands))
        self.same = {n for n, node in self._gradients.items() if node is builder.input(BEHIND)}
        self._nodes = nodes_to_text(self._output)
        self._programs: dict[Any, str] = {}
        self.unfused = unfused

    @property
    def expression(self) -> str:
        """What is computed for an element."""
        return self._output.text()

    @property
    def gradients(self) -> dict[str, str]:
        """What backward computes for an element, of `acc` and of each operand, before sums."""
        return {name: node.text() for name, node in self._gradients.items()}

    def source(self) -> str:
        """The statements of both, as the kernels have them: `y`, and of each name `d_name`."""
        gradients = {f"d_{name}": node for name, node in self._gradients.items()}
        return kernel_text({"y": self._output, **gradients})

    def __repr__(self) -> str:
        return f"fusedops.epilogue({', '.join((ACCUMULATOR, *self.operands))}): {self.expression}"

    def __call__(self, /, *unnamed: Any, **operands: Tensor | float) -> BoundEpilogue:
        """The epilogue with its operands, for one call of `linear`, `matmul` or `mlp`.

        Args:
            unnamed: None: all operands come by name.
            operands: By the function's names. For a result (..., N): (N,) is one value a column,
                (..., 1) one a row, (..., N) one an element, in the product's dtype; columns and
                rows may also be float32. A tensor of one element, or a number, is the same
                everywhere.

        Returns:
            What the argument `epilogue` takes.

        Raises:
            TypeError: An operand is missing, unknown, unnamed, or neither tensor nor number.
        """
        if unnamed:
            names = ", ".join(f"{name}=..." for name in self.operands) or "none"
            raise TypeError(
                f"epilogue: operands come by name ({names}); got {len(unnamed)} without"
            )
        if len(operands) != len(self.operands) or any(n not in operands for n in self.operands):
            raise TypeError(
                f"epilogue: operands must be {', '.join(self.operands) or 'none'}; got "
                f"{', '.join(operands) or 'none'}"
            )
        for name, value in operands.items():
            if not isinstance(value, Tensor | int | float):
                raise TypeError(
                    f"epilogue: {name} must be a tensor or a number; got {type(value).__name__}"
                )
        return BoundEpilogue(self, tuple(operands[name] for name in self.operands))

    def program(self, operands: tuple[tuple[str, str, int], ...]) -> str:
        """The ops' argument for operands of given names, kinds and element sizes."""
        if torch.compiler.is_compiling():
            return to_text(self._nodes, operands, self.unfused)
        if operands not in self._programs:
            self._programs[operands] = to_text(self._nodes, operands, self.unfused)
        return self._programs[operands]


class BoundEpilogue:
    """An epilogue with the operands of one call."""

    def __init__(self, epilogue: Epilogue, values: tuple[Tensor | float, ...]) -> None:
        self.epilogue, self.values = epilogue, values

    def of_product(self, op: str, x: Tensor, weight: Tensor, cast: bool = False) -> Tensor:
        """The epilogue of x (..., K) @ weight (N, K).T, with gradients; cast: operands to x's."""
        _check_product(op, x, weight)
        shape = (*x.shape[:-1], weight.shape[0])
        flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        rows = flat.shape[0]
        signature, tensors, numbers = [], [], []
        for name, value in zip(self.epilogue.operands, self.values, strict=True):
            if not isinstance(value, Tensor):
                numbers.append(float(value))
                signature.append((name, NUMBER, 4))
                continue
            given = value.to(x.dtype) if cast else value
            kind, prepared = _prepared(op, name, given, x, shape, rows)
            signature.append((name, kind, prepared.element_size()))
            tensors.append(prepared)
        if len(signature) > min(_MOST.values()):
            _check_count(op, [kind for _, kind, _ in signature])
        program = self.epilogue.program(tuple(signature))
        if torch.is_grad_enabled() and any(t.requires_grad for t in (flat, weight, *tensors)):
            names = ",".join(name for name, kind, _ in signature if kind != NUMBER)
            full = [ACCUMULATOR, *(name for name, kind, _ in signature if kind == FULL)]
            same = ",".join(name for name in full if name in self.epilogue.same)
            y = EpilogueFunction.apply(flat, weight, program, numbers, names, same, *tensors)
        else:
            y, _ = torch.ops.fusedops_epilogue.forward(
                flat, weight, tensors, numbers, program, False
            )
        return y if x.dim() == 2 else y.reshape(shape)


def _check_product(op: str, x: Tensor, weight: Tensor) -> None:
    if x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"{op}: with an epilogue x must be (..., K) and weight (N, K); got {tuple(x.shape)} "
            f"and {tuple(weight.shape)}"
        )
    if weight.dtype != x.dtype or weight.device != x.device or not x.is_floating_point():
        raise RuntimeError(
            f"{op}: with an epilogue weight must have x's floating dtype and device, {x.dtype} on "
            f"{x.device}; got {weight.dtype} on {weight.device}"
        )


def _check_count(op: str, kinds: list[str]) -> None:
    counts = {
        "(..., N) operands": (kinds.count(FULL), _MOST[FULL]),
        "operands along rows and columns": (kinds.count(ROW) + kinds.count(COLUMN), _MOST[ROW]),
        "numbers": (kinds.count(NUMBER), _MOST[NUMBER]),
    }
    for what, (count, most) in counts.items():
        if count > most:
            raise RuntimeError(f"{op}: an epilogue takes at most {most} {what}; got {count}")


def _prepared(
    op: str, name: str, value: Tensor, x: Tensor, shape: tuple[int, ...], rows: int
) -> tuple[str, Tensor]:
    """The kind of an operand, and the operand as (M, N), (N,) or (M, 1)."""
    columns = shape[-1]
    if value.shape == shape[-1:]:
        kind, prepared = COLUMN, value
    elif value.shape == shape:
        kind, prepared = FULL, value if len(shape) == 2 else value.reshape(rows, columns)
    elif value.shape == (*shape[:-1], 1) and len(shape) > 1:
        kind, prepared = ROW, value.reshape(rows, 1)
    elif value.numel() == 1:
        kind, prepared = COLUMN, value.reshape(1).expand(columns)
    else:
        raise RuntimeError(
            f"{op}: the epilogue's {name} must have shape {tuple(shape)}, {tuple(shape[-1:])}, "
            f"{(*shape[:-1], 1)} or one element; got {tuple(value.shape)}"
        )
    fits = value.dtype == x.dtype or (kind != FULL and value.dtype is torch.float32)
    if not fits or value.device != x.device:
        takes = dict.fromkeys((x.dtype,) if kind == FULL else (x.dtype, torch.float32))
        narrow = " or ".join(map(str, takes))
        raise RuntimeError(
            f"{op}: the epilogue's {name} must be {narrow} on {x.device}; got {value.dtype} on "
            f"{value.device}"
        )
    return kind, prepared


class EpilogueFunction(torch.autograd.Function):
    """(x, weight, program, numbers, names, same, *operands) -> y.

    same: of the product and operands of its size, those whose gradient is that of y.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        program: str,
        numbers: list[float],
        names: str,
        same: str,
        *operands: Tensor,
    ) -> Tensor:
        y, acc = torch.ops.fusedops_epilogue.forward(
            x, weight, list(operands), numbers, program, True
        )
        ctx.save_for_backward(x, weight, acc, *operands)
        ctx.program, ctx.numbers = program, numbers
        ctx.names, ctx.same = names, same.split(",")
        owner = main_grad_owner("linear", weight) if ctx.needs_input_grad[1] else None
        ctx.owner = owner
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, acc, *operands = ctx.saved_tensors
        need_x, need_w = ctx.needs_input_grad[:2]
        needed = ctx.needs_input_grad[6:]
        names = [n for n, need in zip(ctx.names.split(","), needed, strict=False) if need]
        if need_x or need_w:
            names.insert(0, ACCUMULATOR)
        gradients = {name: dy for name in names if name in ctx.same}
        names = [name for name in names if name not in ctx.same]
        if names:
            found = torch.ops.fusedops_epilogue.backward(
                dy, acc, operands, ctx.numbers, ctx.program, ",".join(names)
            )
            gradients |= dict(zip(names, found, strict=True))
        dx = dw = None
        if need_x or need_w:
            dz = gradients[ACCUMULATOR]
            here = need_w and ctx.owner is None
            dx, dw, _ = torch.ops.fusedops.linear_backward(
                dz, x, weight, None, 0, need_x, here, False, False, False
            )
            if ctx.owner is not None:
                dw = accumulate(ctx.owner, dz, x, False)
        rest = [gradients.get(name) for name in ctx.names.split(",")] if ctx.names else []
        return (dx if need_x else None, dw if need_w else None, *[None] * 4, *rest)


def epilogue(function: Callable[..., Any], *, unfused: bool = False) -> Epilogue:
    """Make an epilogue of a function of ``(acc, **operands)``, with its gradient.

    The function runs once, on stand-ins: what it computes for an element becomes an expression, of
    which the backward is derived. On a Hopper GPU the expression is compiled when it is first used
    (about 1.5 s; NVRTC and nvJitLink of torch's own packages link it into a main loop that is
    compiled already) and kept on disk by content. Elsewhere torch's ops compute it in float32, with
    one rounding at the end. Backward of the expression is one pass over what its gradients need,
    which also sums those of operands along rows and columns, in an order that is always the same;
    the products' gradients are those of `linear`. They start from the product as it was kept, in
    the operands' dtype.

    Args:
        function: Its first argument is the accumulator of a product, the others are operands, e.g.
            ``lambda acc, scale, bias, res: torch.relu(acc * scale + bias) + res``.
        unfused: Run by torch's ops on a GPU too: for dtypes, shapes and GPUs that the kernels do
            not take (they take float16 and bfloat16, K and N multiples of 8, sm_90a).

    Returns:
        An `Epilogue`. ``fused(scale=s, bias=b, res=r)`` gives it operands, and is what the argument
        `epilogue` of `linear`, `matmul` and `mlp` takes. Its `expression` and `gradients` say what
        was traced and derived, `source()` the statements of the kernels.

    Raises:
        TypeError: The function does what no epilogue can: another function, a branch on values, a
            tensor from outside.
        ValueError: Its arguments are no accumulator and operands, or operands with defaults, the
            result does not depend on one of them, or it is too large.

    Example:
        >>> scaled = fusedops.epilogue(lambda acc, scale, res: torch.relu(acc * scale) + res)
        >>> y = fusedops.linear(x, weight, epilogue=scaled(scale=s, res=r))
    """
    return Epilogue(function, unfused)
