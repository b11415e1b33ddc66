"""Sites of one product: linear with an activation, and weight gradients in float32."""

from __future__ import annotations

import torch

from .._core.activation import ACTIVATIONS
from .graph import (
    SAME_ORDER,
    Joint,
    Product,
    aten,
    dtype_of,
    is_call,
    is_pointwise,
)
from .probe import Evaluator, activation_of, probes
from .sites import (
    Derived,
    Left,
    Out,
    Site,
    allow_tf32,
    end_of_gradient,
    ends_of,
    give_weight_gradient,
    supported,
    weight_of,
)

F = torch.ops.fusedops
REDUCTIONS = (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.var_mean.correction)


def find_layer(joint: Joint, product: Product) -> Site | Left | None:
    """act(x @ w.T + b), with z beside it where something else reads z."""
    z = product.node
    value = Evaluator({z: probes().z})
    forward = [n for n in joint.closure([z]) if n not in joint.backward]
    codes = {n: code for n in forward if (code := activation_of(value(n))) is not None}
    code = next((c for n, c in codes.items() if _is_stored(n)), None)
    if code is None:
        why = "the activation is read by pointwise code, into which Inductor fuses it"
        return Left(why) if codes else None
    ends = ends_of([n for n in codes if codes[n] == code], dtype_of(z))
    unsupported = supported(product)
    if unsupported is not None:
        return unsupported
    site = Site("linear", ACTIVATIONS[code], product.sizes, [product])
    needs_z = joint.is_alive(z, set(ends), set())
    site.facts |= {"training": needs_z, "bias": product.bias is not None}
    op = F.linear_preact.default if needs_z else F.linear.default
    args = (product.a, weight_of(product), product.bias, code, allow_tf32(product))
    step = site.step(op, args, z)
    site.replace(ends, Out(step, 0))
    if needs_z:
        site.replace([z], Out(step, 1))
    return site


def _is_stored(y: object) -> bool:
    """Whether some reader of a node needs it in memory: anything but pointwise code and sums."""
    stack, seen = [y], set()
    while stack:
        for user in stack.pop().users:  # type: ignore[attr-defined]
            if is_call(user, *SAME_ORDER):
                stack.append(user)
            elif not is_pointwise(user) and user.target not in REDUCTIONS:
                return True
            seen.add(user)
    return False


def find_weight_gradient(joint: Joint, product: Product) -> Site | None:
    """dy.T @ x that is cast to float32: the gradient of a master weight under autocast.

    Not where it is added to another one, as that of a tied last layer: Inductor casts it there.
    """
    a, b = product.left, product.right
    end, _ = end_of_gradient(product.node)
    half = dtype_of(product.node) in (torch.bfloat16, torch.float16)
    if any(is_call(user, aten.add.Tensor) for user in end.users):
        return None
    if not a.transposed or b.transposed or not half or dtype_of(end) is not torch.float32:
        return None
    n, k, m = product.sizes
    if not (isinstance(n, int) and isinstance(k, int)):
        return None
    # The op asks for a weight of the right shape and does not read it: a view that takes no memory
    weight = Derived(aten.as_strided.default, (b.base, [n, k], [0, 0]))
    site = Site("weight_grad", "none", (m, n, k), [])
    args = (a.base, b.base, weight, None, 0, False, True, False, True, False)
    step = site.step(F.linear_backward.default, args, product.node)
    give_weight_gradient(site, product, False, Out(step, 1))
    site.facts["training"] = True
    return site


def find_product(joint: Joint, product: Product) -> Site | None:
    """A product as it is: in float32 our kernels are faster than cuBLAS's at its accuracy."""
    del joint
    if supported(product) is not None or dtype_of(product.node) is not torch.float32:
        return None
    site = Site("product", "none", product.sizes, [product])
    args = (product.a, product.b, product.bias, 0, allow_tf32(product))
    step = site.step(F.matmul.default, args, product.node)
    site.replace([product.node], Out(step, 0))
    site.facts |= {"a": product.left.transposed, "b": product.right.transposed}
    return site
