"""The graph pass of torch.compile: convolutions whose patches do not overlap become products."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fusedops
from fusedops._core import precision
from fusedops._inductor import convolution, patches
from fusedops._inductor.decide import decide_patches
from fusedops._inductor.emit import share_sizes
from integration.test_inductor import assert_close, compiled, without_codegen

# Class, kernel, sizes of x behind batch and channels; the second of a pair leaves rows over.
CASES = {
    "1d": (nn.Conv1d, (4,), (24,)),
    "1d cut": (nn.Conv1d, (4,), (27,)),
    "2d": (nn.Conv2d, (4, 4), (16, 12)),
    "2d cut": (nn.Conv2d, (4, 4), (19, 14)),
    "2d wide": (nn.Conv2d, (2, 3), (8, 10)),
    "2d odd": (nn.Conv2d, (3, 3), (6, 10)),  # 27 features, which are padded
    "2d one dim": (nn.Conv2d, (1, 4), (3, 9)),
    "2d one patch": (nn.Conv2d, (4, 4), (4, 4)),
    "3d": (nn.Conv3d, (2, 4, 4), (4, 8, 8)),
    "3d cut": (nn.Conv3d, (2, 3, 2), (5, 7, 5)),
}
CHANNELS, OUTPUTS = 3, 8


def make(name, device, dtype=torch.float64, *, channels=CHANNELS, **options):
    torch.manual_seed(0)
    kind, kernel, sizes = CASES[name]
    layer = kind(channels, OUTPUTS, kernel, stride=kernel, **options).to(device, dtype)
    return layer, torch.randn(2, channels, *sizes, device=device, dtype=dtype)


def last(x):
    """The same values with the channels innermost in memory."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


@pytest.fixture
def exact():
    """One setting for float32's convolutions and products; they differ on a GPU as torch comes."""
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    yield
    torch.backends.cudnn.conv.fp32_precision = before


def strides(tensors):
    """Those that say where elements are."""
    pairs = ([*zip(t.shape, t.stride(), strict=True)] for t in tensors)
    return [[stride for size, stride in one if size > 1] for one in pairs]


def results(function, x, leaves):
    """y and the gradients of the leaves."""
    y = function(x)
    if not leaves:
        return [y]
    dy = torch.linspace(-1, 2, y.numel(), device=y.device, dtype=torch.float64).reshape(y.shape)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))]


def check(layer, x, leaves=None, tolerance=1e-12, same_strides=True, **options):
    """Compile, compare with the layer, and return the report."""
    leaves = [x.requires_grad_(), *layer.parameters()] if leaves is None else leaves
    ours = fusedops.inductor(force=True)
    got = results(compiled(layer, ours, **options), x, leaves)
    want = results(layer, x, leaves)
    assert_close(got, want, tolerance)
    if same_strides:
        assert strides(got[:1]) == strides(want[:1])
    assert not any("cannot" in left.reason for left in ours.report.left), ours.report
    return ours.report


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("lies", ["first", "last", "x last", "weight last"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(device, name, lies, bias):
    layer, x = make(name, device, bias=bias)
    if lies in ("last", "weight last") and x.dim() > 3:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        layer = layer.to(memory_format=formats[x.dim()])
    x = last(x) if lies in ("last", "x last") else x
    # NOTE: where a layout is mixed, each of torch's backends has its own.
    report = check(layer, x, same_strides=lies == "first")
    assert report.kinds() == ["patches"]
    assert report.replaced[0].training


@pytest.mark.parametrize("wanted", list(product([True, False], repeat=3))[:-1], ids=str)
@pytest.mark.parametrize("name", ["2d cut", "3d"])
def test_every_combination_of_gradients(device, name, wanted):
    layer, x = make(name, device)
    tensors = [x, layer.weight, layer.bias]
    for tensor, needed in zip(tensors, wanted, strict=True):
        tensor.requires_grad_(needed)
    report = check(layer, x, [t for t in tensors if t.requires_grad])
    assert report.kinds() == ["patches"]


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["1d", "2d cut", "2d odd", "3d"])
def test_dtypes(device, name, dtype):
    layer, x = make(name, device, dtype)
    report = check(layer, x, tolerance=1e-5 if dtype is torch.float32 else 2e-2)
    assert report.kinds()[0] == "patches"


def test_inference(device):
    layer, x = make("2d cut", device)
    with torch.no_grad():
        report = check(layer, x, [])
    assert report.kinds() == ["patches"]
    assert not report.replaced[0].training


@pytest.mark.parametrize("name", ["2d", "2d odd"])
def test_autocast(device, name):
    layer, x = make(name, device, torch.float32)

    def function(x):
        with torch.autocast(device, dtype=torch.bfloat16):
            return layer(x)

    ours = fusedops.inductor(force=True)
    leaves = [x.requires_grad_(), *layer.parameters()]
    got = results(compiled(function, ours), x, leaves)
    assert ours.report.kinds() == ["patches", "weight_grad"]
    assert_close(got, results(function, x, leaves), 2e-2)
    assert not torch.equal(got[2], got[2].bfloat16().float())


def test_checkpointing(device):
    layer, x = make("2d cut", device)

    def function(x):
        return checkpoint(layer, x, use_reentrant=False).square()

    ours = fusedops.inductor(force=True)
    leaves = [x.requires_grad_(), *layer.parameters()]
    got = results(compiled(function, ours), x, leaves)
    assert set(ours.report.kinds()) == {"patches"}
    assert_close(got, results(function, x, leaves), 1e-12)


def test_two_convolutions_of_one_weight(device):
    layer, x = make("2d cut", device)

    def function(x):
        return layer(x) * layer(2 * x)

    ours = fusedops.inductor(force=True)
    leaves = [x.requires_grad_(), *layer.parameters()]
    got = results(compiled(function, ours), x, leaves)
    assert ours.report.kinds() == ["patches"] * 2
    assert_close(got, results(function, x, leaves), 1e-12)


def test_rows_of_patches_are_whole_16_bytes(device, monkeypatch):
    seen = []

    def spy(graph):
        found = graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
        seen.extend(tuple(n.meta["val"].shape) for n in found)
        share_sizes(graph)

    monkeypatch.setattr("fusedops._inductor.graph_pass.share_sizes", spy)
    layer, x = make("2d odd", device, torch.bfloat16, bias=False)
    check(layer, x, tolerance=2e-2)
    assert seen == [(12, OUTPUTS), (12, 32), (OUTPUTS, 32)]


class Guards:
    """A pass behind ours that counts the guards of the shapes."""

    def __init__(self, monkeypatch):
        self.added = []
        replace = convolution.replace_convolutions

        def counted(graph, *rest):
            fakes = (n.meta.get("val") for n in graph.nodes)
            mode = next(f.fake_mode for f in fakes if isinstance(f, torch.Tensor))
            before = len(mode.shape_env.guards)
            replace(graph, *rest)
            self.added.append(len(mode.shape_env.guards) - before)

        monkeypatch.setattr("fusedops._inductor.graph_pass.replace_convolutions", counted)


@pytest.mark.parametrize("lies", ["first", "last"])
@pytest.mark.parametrize("name", CASES)
def test_a_dynamic_batch(device, name, lies, monkeypatch):
    layer, x = make(name, device)
    guards, ours = Guards(monkeypatch), fusedops.inductor(force=True)
    run = compiled(layer, ours)
    for batch in (2, 5, 3):
        x = torch.randn(batch, *x.shape[1:], device=device, dtype=x.dtype)
        x = (last(x) if lies == "last" else x).requires_grad_()
        torch._dynamo.mark_dynamic(x, 0)
        leaves = [x, *layer.parameters()]
        assert_close(results(run, x, leaves), results(layer, x, leaves), 1e-12)
    assert ours.report.graphs == 1
    assert ours.report.kinds() == ["patches"]
    assert guards.added == [0]


@pytest.mark.parametrize("lies", ["first", "last"])
def test_dynamic_images(device, lies, monkeypatch):
    layer, _ = make("2d", device)

    def function(x):
        torch._check(x.shape[2] % 4 == 0)
        torch._check(x.shape[3] % 4 == 0)
        return layer(x)

    guards, ours = Guards(monkeypatch), fusedops.inductor(force=True)
    run = compiled(function, ours, dynamic=True)
    for sizes in ((16, 12), (24, 20), (8, 32)):
        x = torch.randn(2, CHANNELS, *sizes, device=device, dtype=torch.float64)
        x = (last(x) if lies == "last" else x).requires_grad_()
        leaves = [x, *layer.parameters()]
        assert_close(results(run, x, leaves), results(function, x, leaves), 1e-12)
    assert ours.report.graphs == 1
    assert ours.report.kinds() == ["patches"]
    assert guards.added == [0]


# ---- what is left alone ----

LEFT = {
    "padding": ({"padding": 1}, "it pads"),
    "same": ({"padding": (2, 0)}, "it pads"),
    "dilation": ({"dilation": 2}, "dilated"),
    "groups": ({"groups": 2}, "2 groups"),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(device, name):
    options, reason = LEFT[name]
    layer, x = make("2d", device, channels=4, **options)
    report = check(layer, x)
    assert report.replaced == []
    assert reason in report.left[0].reason


@pytest.mark.parametrize(
    ("kernel", "stride"), [((1, 1), (1, 1)), ((3, 3), (1, 1)), ((4, 4), (2, 2))], ids=str
)
def test_a_convolution_of_another_kind_is_not_mentioned(device, kernel, stride):
    layer = nn.Conv2d(4, 8, kernel, stride).to(device, torch.float64)
    report = check(layer, torch.randn(2, 4, 8, 8, device=device, dtype=torch.float64))
    assert report.replaced == report.left == []


def test_a_transposed_convolution_is_not_mentioned(device):
    layer = nn.ConvTranspose2d(4, 8, 2, 2).to(device, torch.float64)
    report = check(layer, torch.randn(2, 4, 8, 8, device=device, dtype=torch.float64))
    assert report.replaced == report.left == []


def test_one_number_for_all_strides(device):
    layer, x = make("2d", device)

    def function(x):
        return torch.conv2d(x, layer.weight, layer.bias, (4,))

    ours = fusedops.inductor(force=True)
    with torch.no_grad():
        assert_close([compiled(function, ours)(x)], [layer(x)], 1e-12)
    assert ours.report.kinds() == ["patches"]


def test_images_of_unknown_multiples(device):
    layer, x = make("2d cut", device)
    report = check(layer, x, dynamic=True)
    assert report.replaced == []
    assert "not known to be a multiple of 4" in report.left[0].reason


def test_settings_of_float32_that_differ(device, monkeypatch):
    settings = {"conv": "tf32", "matmul": "ieee"}
    monkeypatch.setattr(precision, "fp32_precision", lambda kind, device: settings[kind])
    layer, x = make("2d", device, torch.float32)
    report = check(layer, x, tolerance=5e-3)
    assert report.replaced == []
    assert "tf32 in convolutions, ieee in products" in report.left[0].reason


def test_the_settings_are_in_the_key_of_the_cache(monkeypatch):
    key = lambda: fusedops.inductor()["options"]["joint_custom_pre_pass"].uuid()  # noqa: E731
    before = key()
    monkeypatch.setattr(precision, "fp32_precision", lambda kind, device: "bf16")
    assert key() != before


def test_a_convolution_that_cannot_be_written_stays(device, monkeypatch):
    def fail(*_):
        raise RuntimeError("no such shape")

    monkeypatch.setattr(patches._Products, "laid", fail)
    layer, x = make("2d", device)
    ours = fusedops.inductor(force=True)
    leaves = [x.requires_grad_(), *layer.parameters()]
    got = results(compiled(layer, ours), x, leaves)
    assert ours.report.replaced == []
    assert "no such shape" in ours.report.left[0].reason
    assert_close(got, results(layer, x, leaves), 1e-12)


def test_without_force_nothing_changes_on_a_cpu():
    layer, x = make("2d", "cpu")
    ours = fusedops.inductor()
    leaves = [x.requires_grad_(), *layer.parameters()]
    got = results(compiled(layer, ours), x, leaves)
    assert ours.report.replaced == []
    assert "nothing is gained on cpu" in ours.report.left[0].reason
    assert_close(got, results(layer, x, leaves), 1e-12)


@pytest.mark.parametrize(
    ("channels", "kernel", "lies_last", "take"),
    [
        (3, (16, 16), False, True),  # ViT
        (3, (14, 14), False, True),  # CLIP
        (3, (4, 4), False, True),  # Swin
        (3, (4, 4), True, True),  # three channels fill no 16 bytes
        (96, (2, 2), False, True),  # ConvNeXt
        (96, (2, 2), True, False),
        (3, (2, 2), False, False),
    ],
)
def test_what_pays_on_a_gpu(channels, kernel, lies_last, take):
    x = SimpleNamespace(
        shape=(64, channels, 224, 224), device=torch.device("cuda"), dtype=torch.bfloat16
    )
    assert decide_patches(x, kernel, lies_last, False).take is take


@pytest.mark.gpu
def test_without_force_on_a_gpu():
    layer, x = make("2d", "cuda", torch.bfloat16)
    ours = fusedops.inductor()
    leaves = [x.requires_grad_(), *layer.parameters()]
    got = results(compiled(layer, ours), x, leaves)
    assert ours.report.kinds()[0] == "patches"
    assert_close(got, results(layer, x, leaves), 2e-2)


# ---- models ----


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).movedim(2, 0).transpose(2, 3)
        x = x + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """timm's, as far as the embedding goes: flatten, transpose, a class token, positions."""

    def __init__(self, width=32, patch=4, image=16):
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) / 10)
        self.block, self.head = Block(width), nn.Linear(width, 10)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.block(x)[:, 0])


class Down(nn.Module):
    """ConvNeXt's: a norm of the channels, where they lie last, and a convolution of 2 x 2."""

    def __init__(self):
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 16, 2, 2)
        self.norm, self.depthwise = nn.LayerNorm(8), nn.Conv2d(8, 8, 3, padding=1, groups=8)

    def forward(self, x):
        x = self.norm(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.down(x + self.depthwise(x)).mean((2, 3))


MODELS = {"vit": (ViT, 1), "convnext": (Down, 2)}


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("code", [False, True], ids=["graphs", "code"])
@pytest.mark.parametrize("name", MODELS)
def test_models(device, name, code):
    torch.manual_seed(0)
    model, x = MODELS[name][0]().to(device), torch.randn(3, 3, 16, 16, device=device)
    ours = fusedops.inductor(force=True)
    torch._dynamo.reset()
    options = ours if code else {"backend": without_codegen(ours["options"])}
    leaves = [x.requires_grad_(), *model.parameters()]
    got = results(torch.compile(model, fullgraph=True, **options), x, leaves)
    assert_close(got, results(model, x, leaves), 2e-5)
    if not code:  # the caches may hold what runs
        assert ours.report.kinds().count("patches") == MODELS[name][1]


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", ["ViT", "CLIPVision", "Swin", "ConvNext"])
def test_hugging_face(device, name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "image_size": 16, "patch_size": 4, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2,
    }  # fmt: skip
    options = {
        "Swin": {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1], "num_heads": [2],
                 "window_size": 4},
        "ConvNext": {"image_size": 32, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    }.get(name, sizes)  # fmt: skip
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, f"{name}Model")(config).to(device).eval()
    x = torch.randn(2, 3, *[options["image_size"]] * 2, device=device)

    def function(x):
        return model(pixel_values=x).last_hidden_state

    ours = fusedops.inductor(force=True)
    torch._dynamo.reset()
    run = torch.compile(function, backend=without_codegen(ours["options"]))
    leaves = [model.get_parameter(n) for n, _ in model.named_parameters() if "embedd" in n]
    leaves = [p for p in leaves if p.dim() == 4]
    got = results(run, x, leaves)
    assert ours.report.kinds().count("patches") == (2 if name == "ConvNext" else 1)
    assert_close(got, results(function, x, leaves), 1e-4)
