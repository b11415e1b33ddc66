"""Grouping and interpolation, of the suite `points`. `bwd` is the backward alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work

# B, N, M, K, C
GROUPS = ((32, 1024, 512, 32, 128), (32, 512, 128, 64, 256), (16, 16384, 4096, 32, 32))
INTERPOLATIONS = ((16, 1024, 4096, 3, 256), (32, 128, 512, 3, 512))
OPS = ("group", "group_xyz", "interpolate")


class GroupingSuite(Suite):
    name = "points"
    passes = ("fwd", "bwd")
    default_dtypes = ("bf16", "fp32")

    def cases(self, selection: Selection) -> list[Case]:
        shapes: list[tuple[str, tuple[int, ...]]] = [("group", shape) for shape in GROUPS]
        shapes += [("group_xyz", shape) for shape in GROUPS]
        shapes += [("interpolate", shape) for shape in INTERPOLATIONS]
        if selection.shapes:  # BxNxM
            shapes = [(op, (*shape, 8, 16)) for shape in selection.shapes for op in OPS]
        return [
            Case(f"{op}/B{b}_N{n}_M{m}_K{k}_C{c}", {"op": op, "shape": (b, n, m, k, c)})
            for op, (b, n, m, k, c) in shapes
        ]

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        """features, idx, then points and centers or weights; dout for bwd."""
        b, n, m, k, c = case["shape"]
        features = torch.randn(b, n, c, dtype=dtype, device=device)
        idx = torch.randint(0, n, (b, m, k), device=device)
        more: list[Tensor] = []
        width: tuple[int, ...] = (b, m, k, c)
        if case["op"] == "group_xyz":
            points = torch.rand(b, n, 3, device=device).to(dtype)
            more = [points, torch.rand(b, m, 3, device=device).to(dtype)]
            width = (b, m, k, c + 3)
        elif case["op"] == "interpolate":
            more = [torch.rand(b, m, k, device=device).to(dtype)]
            width = (b, m, c)
        if pass_ == "bwd":
            more.append(torch.randn(width, dtype=dtype, device=device))
        return (features, idx, *more)

    def ours(self, case: Case, pass_: str) -> Call:
        from fusedops import points as ops

        if pass_ == "bwd":
            return _ours_backward(case)
        if case["op"] == "interpolate":
            return ops.interpolate
        if case["op"] == "group":
            return ops.group
        return lambda features, idx, points, centers: ops.group(
            features, idx, points=points, centers=centers
        )

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return ("eager",)

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        if name != "eager":
            raise PeerUnavailableError(f"the suite has no peer {name!r}")
        calls: dict[str, Call] = {
            "group": _eager_group,
            "group_xyz": _eager_group_xyz,
            "interpolate": _eager_interpolate,
        }
        forward = calls[case["op"]]
        return _eager_backward(forward) if pass_ == "bwd" else forward

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        b, n, m, k, c = case["shape"]
        op = case["op"]
        width = m * c if op == "interpolate" else m * k * (c + (3 if op == "group_xyz" else 0))
        values = b * (n * c + width)
        if op == "group_xyz":
            values += b * (n + m) * 3
        elif op == "interpolate":
            values += b * m * k * (2 if pass_ == "bwd" else 1)
            values += b * n * c if pass_ == "bwd" else 0
        return Work(values * dtype.itemsize + b * m * k * 8, 0)


def _ours_backward(case: Case) -> Call:
    """The ops that autograd calls."""
    n, c = case["shape"][1], case["shape"][4]
    ops = torch.ops.fusedops
    if case["op"] == "interpolate":
        return lambda features, idx, weights, dout: ops.interpolate_backward(
            dout, features, idx, weights, True, True
        )
    first = 3 if case["op"] == "group_xyz" else 0
    return lambda features, idx, *more: (ops.group_backward(more[-1], idx, n, first, c, False),)


def _eager_backward(forward: Call) -> Call:
    def backward(features: Tensor, idx: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        inputs = [features.detach().requires_grad_()]
        *rest, dout = more
        if len(rest) == 1:  # weights
            rest = [rest[0].detach().requires_grad_()]
            inputs += rest
        with torch.enable_grad():
            out = forward(inputs[0], idx, *rest)
        grads: tuple[Tensor, ...] = torch.autograd.grad(out, inputs, dout)
        return grads

    return backward


def _eager_group(features: Tensor, idx: Tensor) -> Tensor:
    cloud = torch.arange(idx.shape[0], device=idx.device)[:, None, None]
    return features[cloud, idx]


def _eager_group_xyz(features: Tensor, idx: Tensor, points: Tensor, centers: Tensor) -> Tensor:
    coordinates = _eager_group(points, idx) - centers[:, :, None]
    return torch.cat([coordinates, _eager_group(features, idx)], -1)


def _eager_interpolate(features: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
    return (_eager_group(features, idx) * weights[..., None]).sum(2)


SUITE = GroupingSuite
