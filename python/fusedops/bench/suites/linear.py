"""act(x w^T + b): forward, and a training step with every gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.quack_peer import QUACK_ACTIVATIONS, quack_linear

if TYPE_CHECKING:
    from collections.abc import Callable

# M, N, K: transformer layers, small, tall, odd and skinny.
FORWARD_SHAPES = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (8192, 4096, 1024),
    (8192, 1024, 4096),
    (16384, 3072, 768),
    (16384, 768, 3072),
    (2048, 2048, 2048),
    (1024, 1024, 1024),
    (512, 512, 512),
    (65536, 256, 256),
    (131072, 128, 128),
    (1048576, 64, 64),
    (32768, 512, 512),
    (8192, 11008, 4096),
    (8192, 4096, 11008),
    (4096, 28672, 4096),
    (3000, 1000, 520),
    (6144, 4608, 1536),
    (2048, 5120, 1280),
    (12544, 768, 768),
    (12544, 3072, 768),
    (1024, 4096, 4096),
    (512, 4096, 4096),
    (256, 4096, 4096),
    (128, 4096, 4096),
    (64, 4096, 4096),
    (32, 4096, 4096),
    (16, 4096, 4096),
    (8, 4096, 4096),
    (1, 4096, 4096),
    (16, 11008, 4096),
    (64, 8192, 1024),
)
# M, N, K of layers of real models: tokens, pixels, points or samples, times weights.
MODEL_SHAPES = {
    # batch x sequence 32 x 512, 8 x 512, 2 x 512
    "BERT base": ((16384, 2304, 768), (16384, 768, 768), (4096, 3072, 768), (1024, 768, 3072)),
    "BERT large": (
        (16384, 4096, 1024),
        (16384, 1024, 4096),
        (8192, 3072, 1024),
        (1024, 1024, 1024),
    ),
    "GPT-2": ((8192, 2304, 768), (8192, 768, 3072), (4096, 50304, 768)),
    "GPT-2 medium, large, XL": (
        *((8192, 3072, 1024), (8192, 5120, 1280), (8192, 1280, 5120)),
        *((8192, 6400, 1600), (8192, 1600, 6400), (1024, 4800, 1600)),
    ),
    "GPT-3 2.7B, 6.7B, 13B": (
        *((2048, 10240, 2560), (4096, 16384, 4096), (4096, 4096, 16384)),
        *((2048, 20480, 5120), (2048, 15360, 5120)),
    ),
    "Llama 1B, 8B, 70B over 8": (
        *((8192, 8192, 2048), (8192, 2048, 8192), (8192, 6144, 4096), (8192, 14336, 4096)),
        *((8192, 4096, 14336), (512, 14336, 4096), (4096, 3584, 8192), (4096, 8192, 3584)),
    ),
    # 64 images, 14 x 14 patches and a class token where the model has one
    "ViT-S, B, L, H": (
        *((12608, 1152, 384), (12608, 1536, 384), (12608, 384, 1536), (12544, 2304, 768)),
        *((12544, 768, 3072), (12608, 4096, 1024), (12608, 1024, 4096)),
        *((16448, 5120, 1280), (16448, 1280, 5120), (197, 3072, 768)),
    ),
    "Swin-T": ((200704, 384, 96), (200704, 96, 384), (50176, 768, 192), (12544, 384, 1536)),
    # 32 clouds: groups x neighbours, points
    "PointNet++": (
        *((524288, 64, 64), (524288, 128, 64), (262144, 128, 128), (262144, 256, 128)),
        *((4096, 512, 256), (4096, 1024, 512), (65536, 128, 128), (32, 512, 1024)),
    ),
    "DLRM, DCN": (
        *((32768, 256, 512), (32768, 64, 256), (32768, 1024, 480), (32768, 1024, 1024)),
        *((32768, 512, 1024), (8192, 1024, 2048), (2048, 512, 1024), (2048, 256, 512)),
    ),
}
STEP_CASES = (
    ((8192, 4096, 1024), "relu"),
    ((8192, 1024, 4096), "relu"),
    ((8192, 4096, 4096), "relu"),
    ((16384, 3072, 768), "relu"),
    ((65536, 256, 256), "relu"),
    ((2048, 2048, 2048), "relu"),
    ((1048576, 64, 64), "relu"),
    ((8192, 4096, 1024), "gelu_tanh"),
    ((65536, 256, 256), "gelu_tanh"),
    ((8192, 8192, 8192), "relu"),
    ((4096, 4096, 4096), "gelu_tanh"),
    ((1024, 1024, 1024), "relu"),
    ((512, 4096, 4096), "relu"),
    ((64, 4096, 4096), "relu"),
    ((131072, 128, 128), "relu"),
    ((32768, 512, 512), "silu"),
    ((8192, 11008, 4096), "silu"),
    ((3000, 1000, 520), "relu"),
    ((16384, 4096, 1024), "gelu"),  # BERT large
    ((8192, 2304, 768), "none"),  # GPT-2
    ((8192, 768, 3072), "none"),
    ((12608, 1536, 384), "gelu"),  # ViT-S
    ((200704, 384, 96), "gelu"),  # Swin-T
    ((32768, 1024, 480), "relu"),  # DLRM
)
COMPILE_MODES = {"compile": None, "compile_max": "max-autotune-no-cudagraphs"}

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
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


class LinearSuite(Suite):
    name = "linear"
    shape = "MxNxK"
    passes: tuple[str, ...] = ("fwd", "step")

    def default_dtypes_of(self, pass_: str) -> tuple[str, ...]:
        return ("bf16", "fp16") if pass_ == "fwd" else ("bf16",)

    def cases(self, selection: Selection) -> list[Case]:
        if selection.shapes or selection.pass_ == "fwd":
            activations = selection.activations or ("relu", "gelu_tanh")
            pairs = [(s, a) for s in selection.shapes or forward_shapes() for a in activations]
        else:
            wanted = selection.activations or ACTIVATIONS
            pairs = [(shape, a) for shape, a in STEP_CASES if a in wanted]
        return [linear_case(shape, activation) for shape, activation in pairs]

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        m, n, k = case["shape"]
        x = torch.randn(m, k, dtype=dtype, device=device)
        weight = torch.randn(n, k, dtype=dtype, device=device).mul_(k**-0.5)
        bias = torch.randn(n, dtype=dtype, device=device)
        if pass_ == "fwd":
            return x, weight, bias
        dy = torch.randn(m, n, dtype=dtype, device=device)
        return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), dy

    def ours(self, case: Case, pass_: str) -> Call:
        return as_pass(fused_linear(case["activation"]), pass_)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        if pass_ != "fwd":
            return ("eager", *COMPILE_MODES)
        fused = ["cublaslt"] if case["activation"] in ("relu", "gelu_tanh") else []
        fused += ["quack"] if case["activation"] in QUACK_ACTIVATIONS else []
        # Ours with relu beside ours with another activation: what the activation costs.
        relu = ("ours_relu",) if case["activation"] not in ("relu", "none") else ()
        return ("eager", *fused, *relu, *COMPILE_MODES)

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "cublaslt", "ours_relu") if pass_ == "fwd" else ("eager", "compile")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        eager = eager_linear(case["activation"])
        if name == "eager":
            return as_pass(eager, pass_)
        if name in COMPILE_MODES:
            return as_pass(compiled(eager, COMPILE_MODES[name]), pass_)
        if name == "cublaslt":
            if device.type != "cuda":
                raise PeerUnavailableError("needs a GPU")
            return cublaslt_linear(case["activation"])
        if name == "quack":
            return quack_linear(case["activation"])
        if name == "ours_relu":
            return fused_linear("relu")
        raise PeerUnavailableError(f"the suite has no peer {name!r}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        m, n, k = case["shape"]
        size = dtype.itemsize
        forward = (m * k + n * k + n + m * n) * size
        if pass_ == "fwd":
            return Work(forward, 2 * m * n * k)
        # Backward reads dy, x, w and writes their gradients; what is saved is read back once.
        backward = (m * n + 2 * (m * k + n * k) + n) * size
        saved = m * n * size if case["activation"] != "none" else 0
        return Work(forward + backward + saved, 6 * m * n * k)


def forward_shapes() -> list[tuple[int, int, int]]:
    """The baselines' shapes, then the models', each once."""
    models = [shape for shapes in MODEL_SHAPES.values() for shape in shapes]
    return list(dict.fromkeys([*FORWARD_SHAPES, *models]))


def linear_case(shape: tuple[int, ...], activation: str) -> Case:
    m, n, k = shape
    return Case(f"{m}x{n}x{k}/{activation}", {"shape": (m, n, k), "activation": activation})


def fused_linear(activation: str) -> Call:
    import fusedops

    return lambda x, weight, bias, *_: fusedops.linear(x, weight, bias, activation=activation)


def eager_linear(activation: str) -> Call:
    act = ACTIVATIONS[activation]
    return lambda x, weight, bias, *_: act(F.linear(x, weight, bias))


def cublaslt_linear(activation: str) -> Call:
    use_gelu = activation == "gelu_tanh"
    return lambda x, weight, bias, *_: torch._addmm_activation(
        bias, x, weight.t(), use_gelu=use_gelu
    )


def compiled(call: Call, mode: str | None = None) -> Call:
    """torch.compile for one static shape; every case starts from an empty cache."""
    torch._dynamo.reset()
    function: Call = torch.compile(call, dynamic=False, fullgraph=True, mode=mode)
    return function


def as_pass(forward: Call, pass_: str) -> Call:
    """`step` runs the forward and returns (y, dx, dweight, dbias)."""
    if pass_ == "fwd":
        return forward

    def step(x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor) -> tuple[Any, ...]:
        y = forward(x, weight, bias)
        return (y.detach(), *torch.autograd.grad(y, (x, weight, bias), dy))

    return step


SUITE = LinearSuite
