"""The graph pass finds PointNet++'s layers however they are written, and nothing else."""

from __future__ import annotations

import copy
import operator
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from integration.test_inductor import without_codegen
from models.twin_ops import shuffle_norms

B, N, M, K, C = 2, 20, 6, 5, 4


class Layers(nn.Module):
    """Linear layers or convolutions over channels, norms and activations."""

    def __init__(self, widths, dims=0, norm=True, act=nn.ReLU, last=True):
        super().__init__()
        linear = (nn.Linear, nn.Conv1d, nn.Conv2d)[dims]
        batch_norm = nn.BatchNorm2d if dims == 2 else nn.BatchNorm1d
        steps = []
        for a, b in pairwise(widths):
            steps.append(linear(a, b, *([1] if dims else []), bias=not norm))
            steps += [batch_norm(b)] if norm else []
            steps.append(act())
        self.steps = nn.Sequential(*(steps if last else steps[:-1]))

    def forward(self, x):
        return self.steps(x)


def index_points(points, idx):
    """As widely copied: the number of each cloud, repeated."""
    shape = [idx.shape[0]] + [1] * (idx.dim() - 1)
    batch = torch.arange(idx.shape[0], device=points.device).view(shape)
    return points[batch.repeat(1, *idx.shape[1:]), idx, :]


def gather(points, idx):
    """An index of every channel."""
    rows = idx.reshape(B, -1)[..., None].expand(-1, -1, points.shape[-1])
    return torch.gather(points, 1, rows).reshape(*idx.shape, -1)


def over_rows(mlp, x):
    return mlp(x.flatten(0, 2)).view(B, M, K, -1).max(2)[0]


# ---- forms that are layers ----


def in_rows(mlp, xyz, features, centers, idx):
    batch = torch.arange(B, device=xyz.device)[:, None, None]
    x = torch.cat((xyz[batch, idx] - centers[:, :, None], features[batch, idx]), -1)
    return mlp(x.flatten(0, 2)).unflatten(0, x.shape[:3]).amax(2)


def in_images(mlp, xyz, features, centers, idx):
    """yanx27's: (B, C, K, M)."""
    offsets = index_points(xyz, idx) - centers.view(B, M, 1, 3)
    x = torch.cat([offsets, index_points(features, idx)], dim=-1).permute(0, 3, 2, 1)
    return torch.max(mlp(x), 2)[0].transpose(1, 2)


def features_first(mlp, xyz, features, centers, idx):
    """yanx27's layers of several scales."""
    offsets = index_points(xyz, idx)
    offsets -= centers.view(B, M, 1, 3)
    x = torch.cat([index_points(features, idx), offsets], dim=-1).permute(0, 3, 2, 1)
    return mlp(x).max(dim=2).values.mT


def channels_first(mlp, xyz, features, centers, idx):
    """pointnet2_ops': (B, C, M, K), and a window that spans the neighbours."""
    at = torch.arange(B, device=xyz.device).view(B, 1, 1)
    offsets = xyz[at, idx].permute(0, 3, 1, 2) - centers.transpose(1, 2).unsqueeze(-1)
    x = torch.cat((offsets, features[at, idx].permute(0, 3, 1, 2)), 1)
    return F.max_pool2d(mlp(x), kernel_size=[1, K]).squeeze(-1).permute(0, 2, 1)


def in_sequences(mlp, xyz, features, centers, idx):
    """(B, C, M K) between, with an index of every channel and a radius."""
    idx = idx.remainder(N)
    offsets = (gather(xyz, idx) - centers.unsqueeze(2).expand(-1, -1, K, -1)) / 0.5
    x = torch.cat([offsets, gather(features, idx)], dim=-1)
    y = mlp(x.reshape(B, M * K, -1).transpose(1, 2)).transpose(1, 2)
    return y.reshape(B, M, K, -1).amax(dim=-2, keepdim=True).squeeze(2)


def scaled(mlp, xyz, features, centers, idx):
    offsets = (index_points(xyz, idx) - centers.unsqueeze(2)) * 2.0
    return over_rows(mlp, torch.cat([offsets, index_points(features, idx)], -1))


def features_alone(mlp, xyz, features, centers, idx):
    return over_rows(mlp, index_points(torch.cat([features, features[..., :3]], -1), idx))


def several_features(mlp, xyz, features, centers, idx):
    offsets = index_points(xyz, idx) - centers.unsqueeze(2)
    parts = [index_points(features[..., :1], idx), offsets, index_points(features[..., 1:], idx)]
    return over_rows(mlp, torch.cat(parts, -1))


def with_copies_of_groups(mlp, xyz, features, centers, idx):
    """What is gathered has another reader."""
    x = torch.cat([index_points(xyz, idx) - centers.unsqueeze(2), index_points(features, idx)], -1)
    return over_rows(mlp, x) + x.sum()


FORMS = {
    in_rows: 0, in_images: 2, features_first: 2, channels_first: 2, in_sequences: 1, scaled: 0,
    features_alone: 0, several_features: 0, with_copies_of_groups: 0,
}  # fmt: skip


# ---- forms that are none ----


def read_between(mlp, xyz, features, centers, idx):
    x = torch.cat([index_points(xyz, idx) - centers.unsqueeze(2), index_points(features, idx)], -1)
    y = mlp.steps[:3](x.flatten(0, 2))
    return mlp.steps[3:](y).view(B, M, K, -1).amax(2) + y.sum()


def mean(mlp, xyz, features, centers, idx):
    x = torch.cat([index_points(xyz, idx) - centers.unsqueeze(2), index_points(features, idx)], -1)
    return mlp(x.flatten(0, 2)).view(B, M, K, -1).mean(2)


def over_groups(mlp, xyz, features, centers, idx):
    x = torch.cat([index_points(xyz, idx) - centers.unsqueeze(2), index_points(features, idx)], -1)
    return mlp(x.flatten(0, 2)).view(B, M, K, -1).amax(1)


def of_other_groups(mlp, xyz, features, centers, idx):
    """Rows of two groups side by side."""
    x = torch.cat([index_points(xyz, idx) - centers.unsqueeze(2), index_points(features, idx)], -1)
    return mlp(x.flatten(0, 2)).view(B, K, M, -1).amax(2)


def two_indices(mlp, xyz, features, centers, idx):
    offsets = index_points(xyz, idx) - centers.unsqueeze(2)
    return over_rows(mlp, torch.cat([offsets, index_points(features, idx.flip(2))], -1))


def places(mlp, xyz, features, centers, idx):
    x = torch.cat([index_points(xyz, idx) - centers.unsqueeze(2), index_points(features, idx)], -1)
    y, at = mlp.steps[:-1](x.flatten(0, 2)).view(B, M, K, -1).max(2)
    return y + (at >= 0)


def other_clouds(mlp, xyz, features, centers, idx):
    batch = torch.arange(B, device=xyz.device).flip(0)[:, None, None]
    x = torch.cat((xyz[batch, idx] - centers[:, :, None], features[batch, idx]), -1)
    return over_rows(mlp, x)


def other_centers(mlp, xyz, features, centers, idx):
    """A centre for each place of a group, not for each group."""
    offsets = index_points(xyz, idx) - centers[:, None, :K]
    return over_rows(mlp, torch.cat([offsets, index_points(features, idx)], -1))


def without_gradients(mlp, xyz, features, centers, idx):
    with torch.no_grad():
        offsets = index_points(xyz, idx) - centers.unsqueeze(2)
        x = torch.cat([offsets, index_points(features, idx)], -1)
    return over_rows(mlp, x)


def changed_between(mlp, xyz, features, centers, idx):
    features = features.clone()
    x = torch.cat([index_points(xyz, idx) - centers.unsqueeze(2), index_points(features, idx)], -1)
    with torch.no_grad():
        features.add_(1)
    return over_rows(mlp, x) + features.sum()


def clamped(mlp, xyz, features, centers, idx):
    x = torch.cat([index_points(xyz, idx) - centers.unsqueeze(2), index_points(features, idx)], -1)
    x.clamp_(-0.2, 0.2)
    return over_rows(mlp, x)


def changed_through_a_view(mlp, xyz, features, centers, idx):
    """Rows that are gathered once become offsets under what reads them as they were."""
    rows = index_points(xyz, idx)
    offsets = rows.permute(0, 2, 1, 3)
    offsets -= centers.unsqueeze(1)
    parts = [rows, offsets.permute(0, 2, 1, 3)[..., :1], index_points(features, idx)[..., 1:]]
    return over_rows(mlp, torch.cat(parts, -1))


def statistics_between(mlp, xyz, features, centers, idx):
    """Statistics are read before they are written."""
    x = torch.cat([index_points(xyz, idx) - centers.unsqueeze(2), index_points(features, idx)], -1)
    y = mlp.steps[:3](x.flatten(0, 2))
    seen = mlp.steps[4].running_mean.sum()
    return mlp.steps[3:](y).view(B, M, K, -1).amax(2) + seen


def dropped(mlp, xyz, features, centers, idx):
    x = torch.cat([index_points(xyz, idx) - centers.unsqueeze(2), index_points(features, idx)], -1)
    y = F.dropout(mlp.steps[:3](x.flatten(0, 2)), 1e-12)
    return mlp.steps[3:](y).view(B, M, K, -1).amax(2)


OTHERS = (
    read_between, mean, over_groups, of_other_groups, two_indices, places, other_clouds,
    other_centers, without_gradients, changed_between, clamped, changed_through_a_view,
    statistics_between, dropped,
)  # fmt: skip


def inputs(device, dtype=torch.float64):
    torch.manual_seed(2)
    xyz, features, centers = (
        torch.rand(B, n, c, dtype=dtype).to(device).requires_grad_()
        for n, c in ((N, 3), (N, C), (M, 3))
    )
    idx = torch.randint(-N, N, (B, M, K)).to(device)  # torch counts from the end, too
    return xyz, features, centers, idx


def compiled(form, mlp, given, **options):
    torch._dynamo.reset()
    ours = fusedops.inductor(force=True)
    backend = without_codegen(ours["options"])
    run = torch.compile(form, backend=backend, fullgraph=True, dynamic=False, **options)
    return run(mlp, *given), ours.report


def results(y, mlp, given):
    """The result, gradients, and statistics."""
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view(y.shape)
    leaves = [t for t in (*given, *mlp.parameters()) if t.requires_grad]
    grads = torch.autograd.grad((y * weight).sum(), leaves, allow_unused=True)
    return [y, *(g for g in grads if g is not None), *mlp.buffers()]


def assert_same(form, mlp, given, rtol=1e-9):
    other = copy.deepcopy(mlp)
    got, report = compiled(form, mlp, given)
    want = form(other, *given)
    pairs = zip(results(got, mlp, given), results(want, other, given), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)
    return report.kinds()


def layers(form, device, dtype=torch.float64, **options):
    torch.manual_seed(1)
    mlp = Layers((3 + C, 8, 6, 7), FORMS.get(form, 0), **options)
    return shuffle_norms(mlp).to(device, dtype)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("form", FORMS, ids=operator.attrgetter("__name__"))
def test_forms(device, form, training):
    mlp = layers(form, device).train(training)
    assert "set_abstraction" in assert_same(form, mlp, inputs(device))


@pytest.mark.parametrize("form", OTHERS, ids=operator.attrgetter("__name__"))
def test_what_is_no_layer_stays(device, form):
    mlp = layers(form, device)
    assert "set_abstraction" not in assert_same(form, mlp, inputs(device))


@pytest.mark.parametrize(
    "options",
    [
        {"norm": False},
        {"act": nn.LeakyReLU},
        {"act": lambda: nn.ReLU(inplace=True)},
        {"act": lambda: nn.LeakyReLU(0.2, inplace=True)},
        {"last": False},
        {"norm": False, "last": False},
    ],
    ids=["bare", "leaky", "in-place", "leaky-in-place", "no-last", "bare-no-last"],
)
def test_layers(device, options):
    mlp = layers(in_rows, device, **options)
    assert "set_abstraction" in assert_same(in_rows, mlp, inputs(device))


@pytest.mark.parametrize(
    "act", [nn.GELU, nn.Tanh, nn.Identity], ids=operator.attrgetter("__name__")
)
def test_other_activations(device, act):
    mlp = layers(in_rows, device, act=act)
    kinds = assert_same(in_rows, mlp, inputs(device))
    assert ("set_abstraction" in kinds) is (act is nn.Identity)


def change(mlp, how):
    """Layers that are not quite those of set abstraction."""
    match how:
        case "no momentum":
            mlp.steps[1].momentum = None
        case "no statistics":
            mlp.steps[1] = nn.BatchNorm1d(8, track_running_stats=False).to(mlp.steps[0].weight)
        case "same norm":
            mlp.steps[3] = nn.Linear(8, 8).to(mlp.steps[0].weight)
            mlp.steps[4] = mlp.steps[1]
            mlp.steps[6] = nn.Linear(8, 7).to(mlp.steps[0].weight)
        case "norm behind":
            mlp.steps[1], mlp.steps[2] = mlp.steps[2], mlp.steps[1]
        case "other activation":
            mlp.steps[2] = nn.LeakyReLU()
        case "layer norm":
            mlp.steps[1] = nn.LayerNorm(8).to(mlp.steps[0].weight)
    return mlp


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("no statistics", True),
        *((one, False) for one in ("same norm", "norm behind", "other activation", "layer norm")),
    ],
)
def test_other_layers(device, how, found):
    mlp = change(layers(in_rows, device), how)
    kinds = assert_same(in_rows, mlp, inputs(device))
    assert ("set_abstraction" in kinds) is found


def test_inference(device):
    mlp, given = layers(in_images, device).eval(), inputs(device)
    with torch.no_grad():
        got, report = compiled(in_images, mlp, given)
        torch.testing.assert_close(got, in_images(mlp, *given), rtol=1e-9, atol=1e-9)
    assert report.kinds() == ["set_abstraction"]


def assert_as_exact(got, want, exact):
    """The dtype is the same, and the result hardly further from the exact one."""
    assert got.dtype is want.dtype
    errors = [(y.double() - exact).norm() / exact.norm() for y in (got, want)]
    assert errors[0] < 1.5 * errors[1]


def test_autocast(device):
    """Coordinates stay float32; everything else is as autocast has it."""
    mlp, given = layers(in_rows, device, torch.float32), inputs(device, torch.float32)
    exact = in_rows(copy.deepcopy(mlp).double(), *(t.double() for t in given[:3]), given[3])
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        want = in_rows(copy.deepcopy(mlp), *given)
        got, report = compiled(in_rows, mlp, given)
    assert "set_abstraction" in report.kinds()
    assert_as_exact(got, want, exact)


def test_mixed_dtypes(device):
    """Float32 coordinates and features that are cast where they are gathered."""

    def run(mlp, xyz, features, centers, idx):
        parts = [index_points(xyz, idx) - centers.unsqueeze(2), index_points(features, idx)]
        return over_rows(mlp, torch.cat(parts, -1).to(torch.bfloat16))

    mlp, given = layers(in_rows, device, torch.bfloat16), inputs(device, torch.float32)
    exact = in_rows(copy.deepcopy(mlp).double(), *(t.double() for t in given[:3]), given[3])
    want = run(copy.deepcopy(mlp), *given)
    got, report = compiled(run, mlp, given)
    assert "set_abstraction" in report.kinds()
    assert got.dtype is torch.bfloat16
    assert_as_exact(got, want, exact)


def test_sizes_that_are_not_fixed(device):
    torch._dynamo.reset()
    ours = fusedops.inductor(force=True)
    run = torch.compile(over_rows_of, backend=without_codegen(ours["options"]), dynamic=True)
    mlp = layers(in_rows, device)
    xyz, features, centers, idx = inputs(device)
    for count in (6, 4):
        given = xyz, features, centers[:, :count], idx[:, :count]
        other = copy.deepcopy(mlp)
        torch.testing.assert_close(run(mlp, *given), over_rows_of(other, *given))
    assert "set_abstraction" not in ours.report.kinds()


def over_rows_of(mlp, xyz, features, centers, idx):
    x = torch.cat([index_points(xyz, idx) - centers.unsqueeze(2), index_points(features, idx)], -1)
    return mlp(x.flatten(0, 2)).unflatten(0, x.shape[:3]).amax(2)


@pytest.mark.parametrize("sizes", [(1, 6, 5), (2, 1, 5), (2, 6, 1), (1, 1, 5)], ids=str)
def test_axes_of_one_element(device, sizes):
    batch, count, k = sizes

    def run(mlp, xyz, features, centers, idx):
        x = torch.cat(
            (index_points(xyz, idx) - centers[:, :, None], index_points(features, idx)), -1
        )
        return mlp(x.flatten(0, 2)).view(*idx.shape, -1).amax(2)

    given = inputs(device)
    given = (*(t[:batch].detach().requires_grad_() for t in given[:3]), given[3][:batch])
    given = given[0], given[1], given[2][:, :count], given[3][:, :count, :k]
    kinds = assert_same(run, layers(in_rows, device), given)
    assert ("set_abstraction" in kinds) is (k > 1)


def test_the_whole_of_inductor(device):
    """With its caches: a graph with our function in it is kept."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    mlp, given = layers(in_images, device).train(), inputs(device)
    other = copy.deepcopy(mlp)
    ours = fusedops.inductor(force=True)
    got = torch.compile(in_images, dynamic=False, **ours)(mlp, *given)
    want = in_images(other, *given)
    for a, b in zip(results(got, mlp, given), results(want, other, given), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert ours.report.kinds() == ["set_abstraction"]
    assert "set_abstraction" in str(ours.report)
    assert not torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_bypass"]


def test_a_few_edges_stay(device):
    """Without force what takes as long as launches is left to torch, and all of it on a CPU."""
    torch._dynamo.reset()
    mlp, given = layers(in_rows, device), inputs(device)
    ours = fusedops.inductor()
    run = torch.compile(in_rows, backend=without_codegen(ours["options"]), dynamic=False)
    torch.testing.assert_close(run(copy.deepcopy(mlp), *given), in_rows(mlp, *given))
    assert "set_abstraction" not in ours.report.kinds()


@pytest.mark.gpu
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_kernels_take_what_pays(training):
    """Half precision on a GPU, without force: values and gradients as exact as torch's."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    mlp = shuffle_norms(Layers((3 + 16, 32, 32, 64))).to("cuda", torch.bfloat16).train(training)
    xyz, centers = torch.rand(8, 256, 3, device="cuda"), torch.rand(8, 128, 3, device="cuda")
    features = torch.randn(8, 256, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    idx = torch.randint(256, (8, 128, 16), device="cuda")

    def run(mlp, features, dtype=torch.bfloat16):
        offsets = (index_points(xyz, idx) - centers[:, :, None]).to(dtype)
        x = torch.cat((offsets, index_points(features, idx)), -1)
        return mlp(x.flatten(0, 2)).view(8, 128, 16, -1).amax(2)

    ours = fusedops.inductor()
    twins = [copy.deepcopy(mlp) for _ in range(2)]
    exact = results(run(twins[0].double(), features.double(), torch.float64), twins[0], [features])
    want = results(run(twins[1], features), twins[1], [features])
    got = results(torch.compile(run, **ours)(mlp, features), mlp, [features])
    assert "set_abstraction" in ours.report.kinds()
    for a, b, c in zip(got, want, exact, strict=True):
        scale = c.double().norm() + 1e-12
        errors = [((t.double() - c.double()).norm() / scale).item() for t in (a, b)]
        assert errors[0] <= 1.5 * errors[1] + 1e-3
