"""Models of timm, torchvision and torch_geometric: real widths, some of the depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .clouds import class_loss, class_output
from .spec import Data, Model, dtype_of

if TYPE_CHECKING:
    from torch import Tensor, nn

CLASSES = 1000
TINY_SIDE = 32


def pictures(model: nn.Module, tiny: bool) -> Data:
    batch, side = (2, TINY_SIDE) if tiny else (64, 224)
    picked = torch.randint(CLASSES, (batch,))
    return torch.randn(batch, 3, side, side, dtype=dtype_of(model)), picked


def timm_model(name: str, kind: str, tiny: dict[str, Any], **real: Any) -> Model:
    def build(is_tiny: bool) -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(kind, **(tiny if is_tiny else real))
        return model

    return Model(name, build, pictures, class_loss, class_output, "timm")


TINY_VIT = {"img_size": TINY_SIDE, "patch_size": 8, "embed_dim": 64, "depth": 2}


def build_mixer(tiny: bool) -> nn.Module:
    from timm.models.mlp_mixer import MlpMixer

    side, patch, depth, dim = (TINY_SIDE, 8, 2, 64) if tiny else (224, 16, 6, 1024)
    model: nn.Module = MlpMixer(CLASSES, side, patch_size=patch, num_blocks=depth, embed_dim=dim)
    return model


def build_vit_b(tiny: bool) -> nn.Module:
    from torchvision.models import VisionTransformer

    sizes = (TINY_SIDE, 8, 2, 4, 64, 96) if tiny else (224, 16, 6, 12, 768, 3072)
    model: nn.Module = VisionTransformer(*sizes)
    return model


def build_swin_v1(tiny: bool) -> nn.Module:
    from torchvision.models import SwinTransformer

    if tiny:
        model: nn.Module = SwinTransformer([4, 4], 32, [2, 2], [2, 4], [4, 4])
    else:
        model = SwinTransformer([4, 4], 128, [2, 2, 2, 2], [4, 8, 16, 32], [7, 7])
    for block in model.modules():  # it draws which samples skip a block
        if type(block).__name__ == "StochasticDepth":
            block.p = 0.0
    return model


def build_gin(tiny: bool) -> nn.Module:
    from torch_geometric.nn.models import GIN

    model: nn.Module = GIN(16, 32, 2, 8) if tiny else GIN(256, 512, 4, 64)
    return model


def graph_data(model: nn.Module, tiny: bool) -> Data:
    nodes, edges, features, classes = (32, 96, 16, 8) if tiny else (100_000, 1_000_000, 256, 64)
    ends = torch.randint(nodes, (2, edges))
    return (
        torch.randn(nodes, features, dtype=dtype_of(model)),
        ends,
        torch.randint(classes, (nodes,)),
    )


def graph_loss(model: nn.Module, x: Tensor, edges: Tensor, target: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(model(x, edges).float(), target)


MODELS = (
    timm_model("vit_large", "vit_large_patch16_224", {**TINY_VIT, "num_heads": 4}, depth=6),
    timm_model(
        "eva02_large",
        "eva02_large_patch14_224",
        {**TINY_VIT, "num_heads": 4, "num_classes": CLASSES},
        depth=4,
        num_classes=CLASSES,
    ),
    timm_model(
        "swin_base",
        "swin_base_patch4_window7_224",
        {"img_size": TINY_SIDE, "window_size": 4, "embed_dim": 32, "depths": (2, 2),
         "num_heads": (2, 4), "drop_path_rate": 0.0},
        depths=(2, 2, 2, 2),
        drop_path_rate=0.0,
    ),
    timm_model(
        "convnext_base",
        "convnext_base",
        {"depths": (1, 1, 1, 1), "dims": (8, 16, 32, 64), "ls_init_value": 0.1},
        depths=(2, 2, 2, 2),
        ls_init_value=0.1,
    ),
    Model("mixer_large", build_mixer, pictures, class_loss, class_output, "timm"),

    Model("tv_vit_base", build_vit_b, pictures, class_loss, class_output, "torchvision"),
    Model("tv_swin_base", build_swin_v1, pictures, class_loss, class_output, "torchvision"),
    Model("gin", build_gin, graph_data, graph_loss, lambda m, x, edges, _: m(x, edges),
          "torch_geometric"),
)  # fmt: skip
