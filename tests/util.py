"""What the test files share: inputs, torch's own answer, the accuracy rule, poisoned memory."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fusedops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)
ACTIVATIONS = (
    "none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu2", "quick_gelu",
    "leaky_relu", "hardswish", "mish", "softplus", "elu", "relu6",
)  # fmt: skip
SMOOTH = ("none", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "quick_gelu", "mish", "softplus")

# What a user writes without us.
TORCH_ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu2": lambda z: F.relu(z).square(),
    "quick_gelu": lambda z: z * torch.sigmoid(1.702 * z),
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "softplus": F.softplus,
    "elu": F.elu,
    "relu6": F.relu6,
}


class Calls(TorchDispatchMode):
    """The ops that a block of code calls, in their order."""

    def __init__(self):
        super().__init__()
        self.names = []  # "aten.add.Tensor", "fusedops.linear"

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function).removesuffix(".default"))
        return function(*args, **(kwargs or {}))

    @property
    def ours(self):
        """The names of our ops among them."""
        return [name.split(".")[1] for name in self.names if name.startswith("fusedops.")]


def calls_of(function, *args):
    """What a call without gradients runs."""
    with torch.no_grad(), Calls() as calls:
        function(*args)
    return calls


# The accuracy rule: our error against float64 is at most RATIO times torch's own on the same input,
# norm-wise and max-wise, plus a floor for inputs on which torch happens to be exact. The floor is
# one ulp of the output dtype at the largest value (max-wise) and a quarter ulp norm-wise (rounding
# alone costs about 0.3 ulp there). In float32 the order of a short sum decides over the last two
# ulp, and our result is the better one as often as torch's.
RATIO = 1.1
NORM_FLOOR_ULP = {torch.float16: 0.25, torch.bfloat16: 0.25, torch.float32: 2.0, torch.float64: 256}
# float64 has nothing better to be measured against: torch's error against the reference is that of
# two summation orders, about sqrt(K) ulp.
MAX_FLOOR_ULP = {torch.float16: 1, torch.bfloat16: 1, torch.float32: 4, torch.float64: 512}


def name(dtype: torch.dtype) -> str:
    """'float16', for test ids."""
    return str(dtype).removeprefix("torch.")


def generator(device: str, seed: int = 0) -> torch.Generator:
    """A seeded generator on the device."""
    return torch.Generator(device=device).manual_seed(seed)


def make(*shape: int, dtype: torch.dtype, device: str, scale: float = 1.0, seed: int = 0) -> Tensor:
    """Normal random values of the dtype."""
    values = torch.randn(shape, generator=generator(device, seed), device=device)
    return (values * scale).to(dtype)


def linear_inputs(
    m: int, n: int, k: int, dtype: torch.dtype, device: str, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x (M, K), weight (N, K), bias (N,), dy (M, N); pre-activations are about scale large."""
    return (
        make(m, k, dtype=dtype, device=device, scale=scale, seed=1),
        make(n, k, dtype=dtype, device=device, scale=1 / math.sqrt(max(k, 1)), seed=2),
        make(n, dtype=dtype, device=device, scale=0.5 * scale, seed=3),
        make(m, n, dtype=dtype, device=device, seed=4),
    )


def torch_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """The two or three kernels that fusedops.linear replaces."""
    return TORCH_ACTIVATION[activation](F.linear(x, weight, bias))


def assert_accurate(
    ours: Tensor, torchs: Tensor, exact: Tensor, what: str = "", scale: Tensor | None = None
) -> None:
    """Hold our result to the accuracy rule (see RATIO); ulps are of `scale` or `exact`."""
    assert ours.shape == exact.shape, f"{what}: shape {ours.shape}, expected {exact.shape}"
    if exact.numel() == 0:
        return
    assert exact.dtype is torch.float64
    assert torch.isfinite(exact).all(), "choose inputs with a finite answer"
    info = torch.finfo(ours.dtype)
    error, torch_error = (ours.double() - exact).abs(), (torchs.double() - exact).abs()
    scale = exact if scale is None else scale
    ulp = max(info.eps * scale.abs().max().item(), info.smallest_normal * info.eps)
    if torch.isfinite(torch_error).all():
        worst, allowed = (
            error.max().item(),
            RATIO * torch_error.max().item() + MAX_FLOOR_ULP[ours.dtype] * ulp,
        )
        assert worst <= allowed, f"{what}: max error {worst:.3e}, allowed {allowed:.3e}"
        norm_ulp = max(
            info.eps * scale.norm().item(),
            info.smallest_normal * info.eps * math.sqrt(exact.numel()),
        )
        total = error.norm().item()
        allowed = RATIO * torch_error.norm().item() + NORM_FLOOR_ULP[ours.dtype] * norm_ulp
        assert total <= allowed, f"{what}: error norm {total:.3e}, allowed {allowed:.3e}"
    else:  # torch overflowed between its kernels; we only have to be right
        assert (error <= ulp + info.eps * exact.abs()).all(), f"{what}: torch is not finite"


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Fill whatever at::empty hands out with NaN: an element that nobody writes shows."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = fill


def captured(call: Callable[[], Any], warm_ups: int = 1) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of a call, which ran on a side stream so many times before, and what it writes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_ups):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


def assert_replays_and_streams(call: Callable[[], Tensor], expected: Tensor) -> None:
    """The same bits from every replay of a graph of calls and from calls on four streams."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call() for _ in range(5)]
    for _ in range(5):
        for result in results:
            result.zero_()
        graph.replay()
        assert all(torch.equal(expected, result) for result in results)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    results = []
    for i in range(40):
        with torch.cuda.stream(streams[i % 4]):
            results.append(call())
    torch.cuda.synchronize()
    assert all(torch.equal(expected, result) for result in results)


# Every way a (rows, columns) matrix may lie in memory. Each builds the values it is given.
def _transposed(matrix: Tensor) -> Tensor:
    return matrix.t().contiguous().t()


def _sliced(matrix: Tensor) -> Tensor:
    rows, columns = matrix.shape
    wide = matrix.new_full((rows + 2, columns + 3), math.nan)
    wide[1 : rows + 1, 1 : columns + 1] = matrix
    return wide[1 : rows + 1, 1 : columns + 1]


def _strided(matrix: Tensor) -> Tensor:
    rows, columns = matrix.shape
    wide = matrix.new_full((2 * rows, 3 * columns), math.nan)
    wide[::2, ::3] = matrix
    return wide[::2, ::3]


def _offset(matrix: Tensor) -> Tensor:
    flat = matrix.new_full((matrix.numel() + 1,), math.nan)
    flat[1:] = matrix.reshape(-1)
    return flat[1:].view(matrix.shape)


def _sliced_transposed(matrix: Tensor) -> Tensor:
    return _sliced(matrix.t()).t()


def _expanded(matrix: Tensor) -> Tensor:
    return matrix[:1].expand(matrix.shape)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda matrix: matrix.contiguous(),
    "transposed": _transposed,
    "sliced": _sliced,
    "sliced_transposed": _sliced_transposed,
    "strided": _strided,
    "offset": _offset,
    "expanded": _expanded,
}


# ---- a small model ----


def mlp(device, activation="gelu"):
    """Three of our layers."""
    torch.manual_seed(0)
    return nn.Sequential(
        fusedops.nn.Linear(16, 32, device=device, activation=activation),
        fusedops.nn.Linear(32, 32, device=device, activation="relu"),
        fusedops.nn.Linear(32, 4, device=device),
    )


class TorchMLP(nn.Module):
    """What `mlp` computes, by torch."""

    def __init__(self, model):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(f.in_features, f.out_features) for f in model)
        self.activations = [f.activation or "none" for f in model]
        self.load_state_dict({f"layers.{k}": v for k, v in model.state_dict().items()})

    def forward(self, x):
        for layer, activation in zip(self.layers, self.activations, strict=True):
            x = torch_linear(x, layer.weight, layer.bias, activation)
        return x


def batch(device, n=24):
    """Inputs and labels."""
    x = make(n, 16, dtype=torch.float32, device=device)
    return x, torch.arange(n, device=device) % 4


def gradients(model, x, labels):
    """Loss and gradients of one step."""
    model.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x).float(), labels)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]
