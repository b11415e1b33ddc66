"""transformers and `kernels`: `from_pretrained(..., use_kernels=True, kernel_config=...)`.

transformers marks layers by name ("RMSNorm", "rotary_pos_emb") and lets `kernels` replace their
forward. A name promises no formula: before a layer is mapped, every module and function of that
name in the model is compared with ours on random numbers, and a name under which one differs is
left alone, with the reason in `report`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import KernelConfig

import fusedops
from fusedops.integrations import layers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

__all__ = ["FusedopsKernelConfig", "InstalledLayer", "kernel_config", "write_kernel_package"]

VARIANTS = ("torch-cuda", "torch-cpu")  # what `kernels` calls a build that is Python only
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 4e-3}
HALF_TOLERANCE = 3e-2


class InstalledLayer:
    """A repository, to `kernels`, that is the fusedops which is installed: nothing is downloaded.

    Args:
        layer_name: A class of `fusedops.integrations.layers`.
    """

    def __init__(self, layer_name: str) -> None:
        self.layer_name = layer_name

    def load(self) -> type[nn.Module]:
        """Returns the class."""
        found: type[nn.Module] = getattr(layers, self.layer_name)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InstalledLayer) and self.layer_name == other.layer_name

    def __hash__(self) -> int:
        return hash((InstalledLayer, self.layer_name))

    def __str__(self) -> str:
        return f"fusedops {fusedops.__version__} (layer `{self.layer_name}`)"


class FusedopsKernelConfig(KernelConfig):
    """What `kernel_config` returns.

    Attributes:
        report: After loading, by layer name: "mapped", or why not.
    """

    def __init__(self) -> None:
        super().__init__(kernel_mapping={}, inherit_mapping=False)
        self.report: dict[str, str] = {}

    def sanitize_kernel_mapping(self, model: nn.Module) -> None:
        """Compares what the model has under our names with our layers, on the model's device."""
        self.store_registered_layer_names(model)
        self.report = {}
        for name in layers.LAYERS:
            found = list(_named(model, name))
            if found:
                reasons = (_difference(name, module) for module in found)
                self.report[name] = next((r for r in reasons if r), "mapped")

    def create_compatible_mapping(self, model: nn.Module, compile: bool = False) -> None:
        """Makes the mapping that `kernels` reads."""
        mapped = [name for name, said in self.report.items() if said == "mapped"]
        devices = "cuda", "cpu"
        self.kernel_mapping = {n: {d: InstalledLayer(n) for d in devices} for n in mapped}


def kernel_config() -> FusedopsKernelConfig:
    """Make the `kernel_config` of `from_pretrained(..., use_kernels=True, kernel_config=...)`.

    It maps RMSNorm and rotary embeddings, for which transformers has names. `fusedops.fuse` takes
    MLPs, linear layers and losses too; it is for models without `use_kernels`, as it leaves alone
    whose forward somebody else has replaced.

    Returns:
        A transformers `KernelConfig`. No kernel comes from the Hub beside it
        (``inherit_mapping=False``).
    """
    return FusedopsKernelConfig()


def _named(model: nn.Module, name: str) -> Iterator[nn.Module]:
    """Modules of that layer name, a class once for every dtype, and functions of that name."""
    seen = set()
    for module in model.modules():
        functions = list(getattr(module, "_kernel_funcs", {}).values())
        for candidate in (module, *functions):
            if getattr(type(candidate), "kernel_layer_name", None) == name:
                weight = getattr(candidate, "weight", None)
                eps = getattr(candidate, "variance_epsilon", None)
                key = (type(candidate), getattr(weight, "dtype", None), eps)
                if key not in seen:
                    seen.add(key)
                    yield candidate


@torch.no_grad()
def _difference(name: str, theirs: nn.Module) -> str:
    """Why theirs is not ours; empty where both give the same."""
    try:
        inputs = _rotary_inputs() if name == "rotary_pos_emb" else _norm_inputs(theirs)
        want, got = type(theirs).forward(theirs, *inputs), _ours(name, theirs, inputs)
        pairs = zip(_tensors(want), _tensors(got), strict=True)
        same = all(_close(a, b) for a, b in pairs)
    except Exception as error:  # theirs has other arguments or attributes, or no memory (meta)
        return f"{type(theirs).__name__} differs: {type(error).__name__}: {error}".splitlines()[0]
    return "" if same else f"{type(theirs).__name__} computes something else"


def _ours(name: str, theirs: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    forward: Any = getattr(layers, name).forward
    return forward(theirs, *inputs)


def _norm_inputs(theirs: nn.Module) -> tuple[Tensor, ...]:
    weight: Any = theirs.weight
    made = torch.Generator().manual_seed(0)
    x = torch.randn(3, *weight.shape, generator=made).to(weight.device, weight.dtype)
    return (x,)


def _rotary_inputs() -> tuple[Tensor, ...]:
    made = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, 5, 8, generator=made) for heads in (4, 2))
    angles = torch.rand(2, 5, 4, generator=made).repeat(1, 1, 2)
    return q, k, angles.cos(), angles.sin()


def _tensors(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def _close(want: Tensor, got: Tensor) -> bool:
    if want.shape != got.shape or want.dtype != got.dtype:
        return False
    bound = TOLERANCES.get(want.dtype, HALF_TOLERANCE)
    return bool(torch.allclose(want.double(), got.double(), rtol=bound, atol=bound))


def write_kernel_package(folder: str | Path) -> Path:
    """Write a package in the layout of the package `kernels`, for its local repositories.

    The folder holds a variant for CUDA and one for the CPU, which import the installed fusedops:
    it needs no compiler and fits any torch that fusedops fits, but is nothing without fusedops.

    Args:
        folder: Made if it does not exist; its own files are replaced.

    Returns:
        The folder: ``kernels.get_local_kernel(folder)``, or in transformers
        ``KernelConfig({"RMSNorm": f"{folder}:RMSNorm"}, use_local_kernel=True)``.
    """
    root = Path(folder).resolve()
    for variant in VARIANTS:
        build = root / "build" / variant
        build.mkdir(parents=True, exist_ok=True)
        backend = variant.removeprefix("torch-")
        metadata = {
            "name": "fusedops",
            "id": f"fusedops_{backend}",
            "version": 1,
            "license": "BSD-3-Clause",
            "python-depends": [],
            "backend": {"type": backend},
        }
        (build / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
        (build / "__init__.py").write_text(
            '"""fusedops for the package `kernels`: import fusedops to have all of it."""\n\n'
            "from fusedops.integrations import layers\n\n"
            '__all__ = ["layers"]\n'
        )
    return root
