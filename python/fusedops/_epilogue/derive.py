"""The backward of an expression, derived: reverse mode over its nodes, as expressions again."""

from __future__ import annotations

from .graph import (
    BEHIND,
    COMPARISONS,
    ONE_OVER_SQRT_2PI,
    TWO_OVER_SQRT_PI,
    Builder,
    Node,
    inputs_of,
    order,
)


def derive(b: Builder, output: Node, names: tuple[str, ...]) -> dict[str, Node]:
    """For each name the expression of its gradient at one element, of inputs and `dy`."""
    gradient: dict[int, Node] = {id(output): b.input(BEHIND)}
    wanted = set(names)
    nodes = order([output])
    reach = {id(node): bool(inputs_of(node) & wanted) for node in nodes}
    for node in reversed(nodes):
        dy = gradient.get(id(node))
        if dy is None or node.op in ("input", "const", *COMPARISONS):
            continue
        for arg, part in zip(node.args, _parts(b, node, dy), strict=True):
            if part is None or not reach[id(arg)] or b.zero(part):
                continue
            known = gradient.get(id(arg))
            gradient[id(arg)] = part if known is None else b.binary("add", known, part)
    return {name: gradient.get(id(b.input(name)), b.const(0)) for name in names}


def _parts(b: Builder, node: Node, dy: Node) -> tuple[Node | None, ...]:
    """The gradients of a node's arguments."""
    x = node.args[0]
    mul = lambda *factors: _product(b, factors)  # noqa: E731
    one = b.const(1)
    match node.op:
        case "neg":
            return (b.unary("neg", dy),)
        case "exp":
            return (mul(dy, node),)
        case "log":
            return (b.binary("div", dy, x),)
        case "sqrt":
            return (b.binary("div", mul(dy, b.const(0.5)), node),)
        case "tanh":
            return (mul(dy, b.binary("add", b.unary("neg", mul(node, node)), one)),)
        case "sigmoid":
            rest = b.binary("add", b.unary("neg", node), one)
            return (mul(dy, node, rest),)
        case "erf":
            bell = b.unary("exp", b.unary("neg", mul(x, x)))
            return (mul(dy, bell, b.const(TWO_OVER_SQRT_PI)),)
        case "normal_cdf":
            bell = b.unary("exp", mul(x, x, b.const(-0.5)))
            return (mul(dy, bell, b.const(ONE_OVER_SQRT_2PI)),)
        case "sin":
            return (mul(dy, b.unary("cos", x)),)
        case "cos":
            return (b.unary("neg", mul(dy, b.unary("sin", x))),)
        case "add":
            return (dy, dy)
        case "mul":
            return (mul(dy, node.args[1]), mul(dy, x))
        case "div":
            other = node.args[1]
            over = b.binary("div", dy, other)
            return (over, b.unary("neg", mul(over, node)))
        case "pow":
            exponent = node.args[1]
            less = b.binary("pow", x, b.const(float(exponent.value) - 1))
            return (mul(dy, less, exponent), None)
        case "maximum" | "minimum":
            return _extremum(b, node, dy)
        case "where":
            zero = b.const(0)
            return (None, b.where(x, dy, zero), b.where(x, zero, dy))
    raise AssertionError(node.op)


def _extremum(b: Builder, node: Node, dy: Node) -> tuple[Node, Node]:
    """As torch: halves where both are the same."""
    first, second = node.args
    a, c = (second, first) if node.op == "maximum" else (first, second)  # first wins where a < c
    same, half = b.binary("eq", first, second), _product(b, (dy, b.const(0.5)))
    wins, zero = b.binary("lt", a, c), b.const(0)
    return (
        b.where(same, half, b.where(wins, dy, zero)),
        b.where(same, half, b.where(wins, zero, dy)),
    )


def _product(b: Builder, factors: tuple[Node, ...]) -> Node:
    result = factors[0]
    for factor in factors[1:]:
        result = b.binary("mul", result, factor)
    return result
