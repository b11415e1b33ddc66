"""One layer: set abstraction behind its search, and EdgeConv with its own."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Work
from fusedops.bench.suites.linear import compiled

from . import eager
from .clouds import cloud
from .search import OURS, TORCH, Search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

PARAMETERS_A_LAYER = 5  # weight; a norm's weight, bias, running mean and variance


@dataclass(frozen=True)
class Layer:
    """B clouds of N points, M groups of K; widths of the MLP behind C features and 3 offsets."""

    b: int
    n: int
    m: int
    k: int
    c: int
    widths: tuple[int, ...]
    radius: float
    cloud: str = "surfaces"

    @property
    def name(self) -> str:
        widths = "-".join(map(str, self.widths))
        return f"B{self.b}_N{self.n}_M{self.m}_K{self.k}_C{self.c}_{widths}"


@dataclass(frozen=True)
class Edge:
    """EdgeConv of one layer, c to `out` features, over the k nearest of N points' features."""

    b: int
    n: int
    k: int
    c: int
    out: int

    @property
    def name(self) -> str:
        return f"B{self.b}_N{self.n}_k{self.k}_{self.c}-{self.out}"


LAYERS = (
    Layer(32, 1024, 512, 32, 0, (64, 64, 128), 0.2),
    Layer(32, 512, 128, 64, 128, (128, 128, 256), 0.4),
    Layer(16, 16384, 4096, 32, 6, (32, 32, 64), 0.1),
    Layer(32, 512, 128, 64, 256, (256, 256, 512), 0.4),
    Layer(32, 512, 128, 32, 256, (256, 512, 1024), 0.4),
)
EDGES = (Edge(32, 1024, 20, 64, 64), Edge(8, 4096, 20, 64, 128))
# What the picture of docs/ is of: time against K, and against the width of all three layers.
SWEEP = (
    *(Layer(32, 1024, 512, k, 0, (64, 64, 128), 0.4) for k in (8, 16, 32, 64, 128)),
    *(Layer(32, 1024, 512, 32, 64, (w, w, w), 0.2) for w in (16, 32, 64, 96, 128, 192, 256, 512)),
)


def layer_cases(selection: Selection) -> list[Case]:
    """The suite's layers; for the command line's BxNxM small ones of both kinds."""
    kinds: list[tuple[str, Layer | Edge]] = []
    if selection.shapes:
        for b, n, m in selection.shapes:
            small = Layer(b, n, min(m, n), min(8, n), 0, (16, 16, 32), 0.5)
            kinds += [("sa", small), ("edge", Edge(b, n, min(8, n), 16, 16))]
    else:
        kinds = [("sa", layer) for layer in LAYERS] + [("edge", edge) for edge in EDGES]
        kinds += [("sweep", layer) for layer in SWEEP]
    return [Case(f"{kind}/{of.name}", {"kind": kind, "of": of}) for kind, of in kinds]


def make_inputs(
    case: Case, dtype: torch.dtype, pass_: str, device: torch.device
) -> tuple[Tensor, ...]:
    """A set abstraction has xyz, centers, idx, features unless C is 0; an EdgeConv has features.

    Then the parameters, layer by layer, and dout for a step. What a training has gradients of
    requires them: features and parameters, not coordinates.
    """
    of = case["of"]
    data: list[Tensor] = []
    if isinstance(of, Edge):
        sizes, learnt, shape = (2 * of.c, of.out), True, (of.b, of.n, of.out)
    else:
        xyz = cloud(of.cloud, of.b, of.n, device)
        wide = torch.promote_types(dtype, torch.float32)
        chosen = OURS.sample(xyz, of.m)
        centers = eager.gather(xyz, chosen)
        data = [xyz.to(wide), centers.to(wide), OURS.ball(xyz, centers, of.radius, of.k)]
        sizes, learnt = (3 + of.c, *of.widths), of.c > 0
        shape = (of.b, of.m, of.widths[-1])
    needs = pass_ == "step"
    if learnt:
        features = torch.randn(of.b, of.n, of.c, dtype=dtype, device=device)
        data.append(features.requires_grad_(needs))
    for fan_in, fan_out in itertools.pairwise(sizes):
        data += _parameters(fan_in, fan_out, dtype, needs, device)
    if needs:
        data.append(torch.randn(shape, dtype=dtype, device=device))
    return tuple(data)


def _parameters(
    fan_in: int, fan_out: int, dtype: torch.dtype, needs: bool, device: torch.device
) -> list[Tensor]:
    """A weight in dtype; a norm's parameters and running statistics in float32 or wider."""
    wide = {"dtype": torch.promote_types(dtype, torch.float32), "device": device}
    weight = torch.randn(fan_out, fan_in, dtype=dtype, device=device) * (2 / fan_in) ** 0.5
    scale, shift = 1 + 0.2 * torch.randn(fan_out, **wide), 0.2 * torch.randn(fan_out, **wide)
    mean, variance = 0.1 * torch.randn(fan_out, **wide), 0.5 + torch.rand(fan_out, **wide)
    learnt = [tensor.requires_grad_(needs) for tensor in (weight, scale, shift)]
    return [*learnt, mean, variance]


def ours(case: Case, pass_: str) -> Call:
    from fusedops import points
    from fusedops.points.norms import BatchNorm

    of, training = case["of"], pass_ == "step"

    def norms_of(norms: Sequence[Sequence[Tensor]]) -> list[BatchNorm]:
        return [BatchNorm(w, b, mean, var, training) for w, b, mean, var in norms]

    def abstraction(xyz: Tensor, centers: Tensor, idx: Tensor, *rest: Tensor) -> Tensor:
        features, weights, norms = split(of, rest)
        result: Tensor = points.set_abstraction(
            xyz, features, centers, idx, weights, norms=norms_of(norms)
        )
        return result

    def edge(*inputs: Tensor) -> Tensor:
        features, weights, norms = split(of, inputs)
        assert features is not None
        idx, _ = OURS.knn(features.detach(), features.detach(), of.k)
        result: Tensor = points.edge_conv(
            features, idx, weights, norms=norms_of(norms), negative_slope=eager.LEAK
        )
        return result

    return as_pass(edge if isinstance(of, Edge) else abstraction, pass_)


def peers(case: Case) -> tuple[str, ...]:
    """`torch` is of what searches by itself."""
    if case["kind"] == "sweep":
        return ("eager",)
    return ("eager", "compile", *(("torch",) if isinstance(case["of"], Edge) else ()))


def peer(name: str, case: Case, pass_: str) -> Call:
    if name not in peers(case):
        raise PeerUnavailableError(f"{case.name} has no peer {name!r}")
    forward = plain(case["of"], pass_ == "step", TORCH if name == "torch" else OURS)
    return as_pass(compiled(forward) if name == "compile" else forward, pass_)


def plain(of: Layer | Edge, training: bool, search: Search) -> Call:
    """The layer in torch's functions; every neighbour counts in a norm, repeated ones too."""

    def abstraction(xyz: Tensor, centers: Tensor, idx: Tensor, *rest: Tensor) -> Tensor:
        features, weights, norms = split(of, rest)
        y = eager.grouped(xyz, features, centers, idx, weights[0].dtype)
        return eager.layers(y, weights, norms, training).max(2).values

    def edge(*inputs: Tensor) -> Tensor:
        features, weights, norms = split(of, inputs)
        assert features is not None
        idx, _ = search.knn(features.detach(), features.detach(), of.k)
        return eager.layers(eager.edges(features, idx), weights, norms, training, eager.LEAK).amax(
            2
        )

    return edge if isinstance(of, Edge) else abstraction


def exact(case: Case, pass_: str, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results in float64, over the neighbours that the inputs' own dtype finds."""
    of = case["of"]
    if not isinstance(of, Edge):
        return _tuple(as_pass(plain(of, pass_ == "step", OURS), pass_)(*doubled(inputs)))
    idx, _ = OURS.knn(inputs[0].detach(), inputs[0].detach(), of.k)

    class Found:
        def knn(self, x: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
            return idx, idx

    forward = plain(of, pass_ == "step", Found())  # type: ignore[arg-type]
    return _tuple(as_pass(forward, pass_)(*doubled(inputs)))


def doubled(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Copies in float64; indices stay, and so does what requires gradients."""
    copies = [t.detach().double() if t.is_floating_point() else t for t in inputs]
    return [c.requires_grad_(t.requires_grad) for c, t in zip(copies, inputs, strict=True)]


def split(
    of: Layer | Edge, rest: Sequence[Tensor]
) -> tuple[Tensor | None, list[Tensor], list[Sequence[Tensor]]]:
    """Features or None, the weights and the norms of what follows the search's tensors."""
    features = rest[0] if of.c else None
    own = rest[1:] if of.c else rest
    count = 1 if isinstance(of, Edge) else len(of.widths)
    each = [own[i * PARAMETERS_A_LAYER :][:PARAMETERS_A_LAYER] for i in range(count)]
    return features, [layer[0] for layer in each], [layer[1:] for layer in each]


def as_pass(forward: Call, pass_: str) -> Call:
    """`step` returns the output and the gradients of all that requires them."""
    if pass_ == "fwd":
        return forward

    def step(*inputs: Tensor) -> tuple[Tensor, ...]:
        out = forward(*inputs[:-1])
        learnt = [t for t in inputs if t.requires_grad]
        return (out.detach(), *torch.autograd.grad(out, learnt, inputs[-1]))

    return step


def work(case: Case, dtype: torch.dtype, pass_: str) -> Work:
    """Each tensor once; the first layer's features by point, the other products by edge.

    The distances of a search are not counted.
    """
    of = case["of"]
    if isinstance(of, Edge):
        rows = of.b * of.n
        values, indices, coordinates = rows * (of.c + of.out), 0, 0
        macs = 2.0 * rows * of.c * of.out
    else:
        edges = of.b * of.m * of.k
        values, indices = of.b * (of.n * of.c + of.m * of.widths[-1]), edges
        coordinates = of.b * (of.n + of.m) * 3  # which have no gradient
        inner = sum(a * b for a, b in itertools.pairwise((3, *of.widths)))
        macs = float(of.b * of.n * of.c * of.widths[0] + edges * inner)
    steps = 3 if pass_ == "step" else 1
    moved = values * dtype.itemsize * (2 if pass_ == "step" else 1) + 8 * indices
    moved += coordinates * torch.promote_types(dtype, torch.float32).itemsize
    return Work(moved, 2 * macs * steps)


def _tuple(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)
