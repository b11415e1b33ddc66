"""From a Python function to an expression: the function runs once, on stand-ins for tensors."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from .graph import ACCUMULATOR, BEHIND, MOST_NODES, Builder, Node, inputs_of, order

if TYPE_CHECKING:
    from collections.abc import Callable


class Traced:
    """Stands for a tensor while the function runs."""

    def __init__(self, builder: Builder, node: Node) -> None:
        self.builder, self.node = builder, node

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Traced:
        name = getattr(function, "__name__", str(function))
        if function not in FUNCTIONS:
            raise TypeError(f"epilogue: {name} is not supported; {_SUPPORTED}")
        found = [x for x in (*args, *(kwargs or {}).values()) if isinstance(x, cls)]
        if not found:
            raise TypeError(f"epilogue: {name} takes operands one by one, no lists of them")
        return _call(found[0].builder, name, FUNCTIONS[function], args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        method = _METHODS.get(name)
        if method is None:
            raise TypeError(f"epilogue: a tensor's {name} is not supported; {_SUPPORTED}")
        return lambda *args, **kwargs: _call(self.builder, name, method, (self, *args), kwargs)

    def __bool__(self) -> bool:
        raise TypeError("epilogue: a branch depends on values; write torch.where")

    __hash__ = object.__hash__


def _node(b: Builder, value: Any, name: str) -> Node:
    if isinstance(value, Traced):
        return value.node
    if isinstance(value, int | float) and not isinstance(value, bool):
        return b.const(value)
    if isinstance(value, torch.Tensor):
        raise TypeError(f"epilogue: {name} met a tensor from outside; pass it as an operand")
    raise TypeError(f"epilogue: {name} takes operands and numbers; got {type(value).__name__}")


def _call(b: Builder, name: str, rule: Any, args: Any, kwargs: Any) -> Traced:
    kwargs = dict(kwargs)
    if kwargs.pop("inplace", False):
        raise TypeError(f"epilogue: {name}: nothing is changed in place")
    try:
        bound = inspect.signature(rule).bind(b, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"epilogue: {name}: {error}") from None
    values = {
        parameter: value if value is None or parameter == "approximate" else _node(b, value, name)
        for parameter, value in list(bound.arguments.items())[1:]
    }
    return Traced(b, rule(b, **values))


def _unary(op: str) -> Any:
    return lambda b, input: b.unary(op, input)


def _binary(op: str) -> Any:
    return lambda b, input, other: b.binary(op, input, other)


def _sub(b: Builder, input: Any, other: Any) -> Node:
    return b.binary("add", input, b.unary("neg", other))


def _swapped(rule: Any) -> Any:
    return lambda b, input, other: rule(b, other, input)


def _relu(b: Builder, input: Any) -> Node:
    return b.where(b.binary("le", input, b.const(0)), b.const(0), input)  # NaN stays


def _silu(b: Builder, input: Any) -> Node:
    return b.binary("mul", input, b.unary("sigmoid", input))


def _gelu(b: Builder, input: Any, approximate: Any = "none") -> Node:
    if approximate == "tanh":
        cube = b.binary("mul", b.binary("mul", input, input), input)
        inner = b.binary("add", input, b.binary("mul", cube, b.const(0.044715)))
        scaled = b.binary("mul", inner, b.const(2 * math.sqrt(2 / math.pi)))
        return b.binary("mul", input, b.unary("sigmoid", scaled))
    return b.binary("mul", input, b.unary("normal_cdf", input))


def _clamp(b: Builder, input: Any, min: Any = None, max: Any = None) -> Node:
    result: Node = input
    if min is not None:
        result = b.where(b.binary("lt", result, min), min, result)
    if max is not None:
        result = b.where(b.binary("lt", max, result), max, result)
    return result


def _abs(b: Builder, input: Any) -> Node:
    negative = b.binary("lt", input, b.const(0))
    signed = b.where(negative, b.unary("neg", input), input)
    return b.where(b.binary("eq", input, b.const(0)), b.const(0), signed)


def _leaky_relu(b: Builder, input: Any, negative_slope: Any = 0.01) -> Node:
    slope = negative_slope if isinstance(negative_slope, Node) else b.const(negative_slope)
    return b.where(b.binary("lt", b.const(0), input), input, b.binary("mul", input, slope))


def _inside(b: Builder, input: Any, low: Node, high: Node) -> Node:
    """clamp, but for the gradient at both ends, which is zero as torch's is."""
    above = b.where(b.binary("le", input, low), low, input)
    return b.where(b.binary("le", high, input), high, above)


def _hardtanh(b: Builder, input: Any, min_val: Any = None, max_val: Any = None) -> Node:
    low, high = min_val or b.const(-1), max_val or b.const(1)
    return _inside(b, input, low, high)


def _relu6(b: Builder, input: Any) -> Node:
    return _inside(b, input, b.const(0), b.const(6))


def _hardsigmoid(b: Builder, input: Any) -> Node:
    return b.binary("div", _relu6(b, b.binary("add", input, b.const(3))), b.const(6))


def _hardswish(b: Builder, input: Any) -> Node:
    return b.binary("mul", input, _hardsigmoid(b, input))


def _pow(b: Builder, input: Any, exponent: Any) -> Node:
    if exponent.op != "const":
        raise TypeError(
            "epilogue: pow takes a number as exponent; write torch.exp(exponent * torch.log(base)),"
            " or math.log(base) of a number"
        )
    return b.binary("pow", input, exponent)


def _where(b: Builder, condition: Any, input: Any, other: Any) -> Node:
    if condition.op not in ("lt", "le", "eq"):
        raise TypeError("epilogue: where takes a comparison as its condition")
    return b.where(condition, input, other)


def _square(b: Builder, input: Any) -> Node:
    return b.binary("mul", input, input)


def _rsqrt(b: Builder, input: Any) -> Node:
    return b.binary("div", b.const(1), b.unary("sqrt", input))


_RULES: dict[str, Any] = {
    **{name: _unary(name) for name in ("neg", "exp", "log", "sqrt", "tanh", "sigmoid", "erf")},
    **{name: _unary(name) for name in ("sin", "cos")},
    **{name: _binary(name) for name in ("add", "mul", "div", "maximum", "minimum")},
    **{name: _binary(name) for name in ("lt", "le", "eq")},
    "gt": _swapped(_binary("lt")),
    "ge": _swapped(_binary("le")),
    "sub": _sub,
    "relu": _relu,
    "silu": _silu,
    "gelu": _gelu,
    "clamp": _clamp,
    "abs": _abs,
    "leaky_relu": _leaky_relu,
    "hardtanh": _hardtanh,
    "relu6": _relu6,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "pow": _pow,
    "where": _where,
    "square": _square,
    "rsqrt": _rsqrt,
}
FUNCTIONS: dict[Any, Any] = {
    getattr(module, name): rule
    for name, rule in _RULES.items()
    for module in (torch, F)
    if callable(getattr(module, name, None))
}
_METHODS = {name: rule for name, rule in _RULES.items() if hasattr(torch.Tensor, name)}
_SUPPORTED = "supported: + - * / ** and comparisons, " + ", ".join(sorted(_RULES))


def _operator(rule: Any) -> Any:
    return lambda self, *others: _call(self.builder, "an operator", rule, (self, *others), {})


def _refused(name: str) -> Any:
    def refuse(self: Traced, *others: Any) -> Any:
        raise TypeError(f"epilogue: {name} is not supported; {_SUPPORTED}")

    return refuse


for _name in (
    *("__getitem__", "__iter__", "__len__", "__float__", "__int__", "__index__", "__invert__"),
    *("__floordiv__", "__rfloordiv__", "__mod__", "__rmod__", "__matmul__", "__rmatmul__"),
    *("__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__"),
):
    setattr(Traced, _name, _refused(_name))
for _names, _rule in (
    (("__abs__",), _abs),
    (("__add__", "__radd__"), _RULES["add"]),
    (("__mul__", "__rmul__"), _RULES["mul"]),
    (("__sub__",), _sub),
    (("__rsub__",), _swapped(_sub)),
    (("__truediv__",), _RULES["div"]),
    (("__rtruediv__",), _swapped(_RULES["div"])),
    (("__neg__",), _RULES["neg"]),
    (("__pow__",), _pow),
    (("__rpow__",), _swapped(_pow)),
    (("__lt__",), _RULES["lt"]),
    (("__le__",), _RULES["le"]),
    (("__gt__",), _RULES["gt"]),
    (("__ge__",), _RULES["ge"]),
    (("__eq__",), _RULES["eq"]),
):
    for _name in _names:
        setattr(Traced, _name, _operator(_rule))


def trace(function: Callable[..., Any]) -> tuple[Builder, Node, tuple[str, ...]]:
    """The expression of a function, and the names of its operands.

    Raises:
        TypeError: The function does what no epilogue can.
        ValueError: Its arguments are no accumulator and operands, or it is too large.
    """
    builder = Builder()
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise TypeError(
            f"epilogue: function must be a Python function of (acc, operands...); got {function!r}"
        ) from None
    names, kinds = list(parameters), {p.kind for p in parameters.values()}
    if not names or kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise ValueError(f"epilogue: the function must take (acc, operands...); it takes {names}")
    first, operands = names[0], tuple(names[1:])
    for name in operands:
        if name in (ACCUMULATOR, BEHIND) or not name.isascii():
            raise ValueError(
                f"epilogue: an operand's name must be of ASCII letters, and neither {ACCUMULATOR} "
                f"nor {BEHIND}; got {name}"
            )
    for name in operands:
        if parameters[name].default is not inspect.Parameter.empty:
            raise ValueError(
                "epilogue: operands have no defaults, as each call names them all; got "
                f"{name}={parameters[name].default!r}"
            )
    leaves = {name: Traced(builder, builder.input(name)) for name in operands}
    result = function(Traced(builder, builder.input(ACCUMULATOR)), **leaves)
    if not isinstance(result, Traced) or result.node.op in ("lt", "le", "eq"):
        raise TypeError(
            f"epilogue: the function must return one tensor; got {type(result).__name__}"
        )
    used = inputs_of(result.node)
    missing = [first] * (ACCUMULATOR not in used) + [name for name in operands if name not in used]
    if missing:
        raise ValueError(f"epilogue: the result does not depend on {', '.join(missing)}")
    if len(order([result.node])) > MOST_NODES:
        raise ValueError(f"epilogue: more than {MOST_NODES} operations")
    return builder, result.node, operands
