"""fuse finds layers of point clouds: torch_geometric's, and modules built as PointNet++'s are."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fusedops
from models import twins
from models.twin_geometric import nn_of_twins
from models.twin_ops import shuffle_norms
from util import Calls

LAYERS = {
    "yan": lambda: twins.YanAbstraction(7, 12, 0.5, 6, (8, 10)),
    "yan_random": lambda: RandomStart(7, 12, 0.5, 6, (8, 10)),
    "yan_all": lambda: twins.YanAbstraction(7, None, None, None, (8, 10)),
    "yan_msg": lambda: twins.YanAbstractionMsg(4, 12, [0.4, 0.8], [4, 7], [(8, 9), (6, 5)]),
    "wijmans": lambda: twins.WijmansAbstraction(4, 12, [0.4, 0.8], [4, 7], [(8, 9), (6, 5)]),
    "wijmans_features": lambda: twins.WijmansAbstraction(4, 12, [0.5], [4], [(8,)], use_xyz=False),
    "wijmans_all": lambda: twins.WijmansAbstraction(4, None, None, None, [(8, 9)]),
    "yan_fp": lambda: twins.YanPropagation(11, (8, 9)),
    "dgcnn": lambda: twins.WangDGCNN(5, (6, 7, 8, 9), 6, 16, (12, 9)),
    "wijmans_fp": lambda: twins.PointnetFPModule([11, 8, 9]),
}


class RandomStart(twins.YanAbstraction):
    random = True


class Squared(twins.YanAbstraction):
    """Has the attributes and computes something else."""

    def forward(self, xyz, features):
        centers, y = super().forward(xyz, features)
        return centers, y.square()


def other_boundary(base, closed, dtype):
    """A class like base, whose balls hold a point at the radius, or do not; of one dtype alone."""

    class Other(base):
        def forward(self, xyz, features):
            if xyz.dtype is not dtype:
                raise RuntimeError(f"{dtype} only")
            real = twins.ball
            twins.ball = lambda xyz, centers, radius, k, **_: real(xyz, centers, radius, k, closed)
            try:
                return super().forward(xyz, features)
            finally:
                twins.ball = real

    return Other


class Float(twins.YanAbstraction):
    """Runs in float32 alone."""

    def forward(self, xyz, features):
        if xyz.dtype is not torch.float32:
            raise RuntimeError("float32 only")
        return super().forward(xyz, features)


class OnGPU(twins.WijmansAbstraction):
    """Runs nowhere in these tests."""

    def forward(self, xyz, features):
        raise RuntimeError("CUDA only")


def layer(name, device="cpu", dtype=torch.float64):
    torch.manual_seed(1)
    return shuffle_norms(LAYERS[name]()).to(device, dtype)


def inputs(name, device="cpu", dtype=torch.float64):
    torch.manual_seed(2)

    def draw(*shape):
        return torch.rand(*shape, dtype=dtype).to(device).requires_grad_()

    if name.endswith("_fp"):
        at = [draw(2, 30, 3), draw(2, 15, 3)]
        theirs = name == "wijmans_fp"  # whose distances have no gradient
        at = [x.detach() if theirs else x.transpose(1, 2) for x in at]
        return [*at, draw(2, 5, 30), draw(2, 6, 15)]
    if name == "dgcnn":
        return [draw(3, 3, 40)]
    at = draw(2, 40, 3) if name.startswith("wijmans") else draw(2, 3, 40)
    return [at, draw(2, 4, 40)]


def tensors(y):
    return [t for t in (y if isinstance(y, tuple) else (y,)) if t is not None]


def assert_same(theirs, ours, given, rtol=1e-9):
    """Values, gradients and running statistics."""
    torch.manual_seed(3)
    want = tensors(theirs(*given))
    torch.manual_seed(3)
    with Calls() as calls:
        got = tensors(ours(*given))
    assert len(got) == len(want)
    leaves = [x for x in given if x is not None and x.requires_grad]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)
    weight = torch.randn_like(want[-1])
    grads = [
        torch.autograd.grad((y[-1] * weight).sum(), [*leaves, *model.parameters()],
                            allow_unused=True)
        for y, model in ((got, ours), (want, theirs))
    ]  # fmt: skip
    for a, b in zip(*grads, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=rtol, atol=10 * rtol)
    for (key, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol, msg=key)
    return calls


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", LAYERS)
def test_modules_like_pointnets(device, name, training):
    theirs = layer(name, device).train(training)
    ours = copy.deepcopy(theirs)
    before = torch.get_rng_state()
    report = fusedops.fuse(ours)
    assert torch.equal(before, torch.get_rng_state())
    op = "feature_propagation" if name.endswith("_fp") else "set_abstraction"
    op = "edge_conv" if name == "dgcnn" else op
    assert [block.kind for block in report.blocks] == [op]
    assert type(ours).__name__ == type(theirs).__name__
    assert isinstance(ours, type(theirs))
    assert_same(theirs, ours, inputs(name, device))
    assert not fusedops.fuse(ours).blocks


def test_a_module_with_other_values_stays():
    module = shuffle_norms(Squared(7, 12, 0.5, 6, (8, 10)))
    assert not fusedops.fuse(module).blocks
    assert type(module) is Squared


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["yan", "yan_msg", "wijmans"])
def test_a_module_with_another_boundary_stays(name, dtype):
    """A point exactly at the radius is no rounding: a lattice has many."""
    open_ball = name == "wijmans"
    for closed in (open_ball, not open_ball):
        module = layer(name)
        module.__class__ = other_boundary(type(module), closed, dtype)
        blocks = fusedops.fuse(module.to(dtype)).blocks
        assert bool(blocks) == (closed is not open_ball), closed


def test_a_module_that_cannot_run_in_float64():
    torch.manual_seed(1)
    ours = shuffle_norms(Float(7, 12, 0.5, 6, (8, 10)))
    theirs = copy.deepcopy(ours)
    assert fusedops.fuse(ours).blocks
    assert_same(theirs, ours, inputs("yan", dtype=torch.float32), rtol=1e-4)


def test_a_module_that_cannot_run_is_known_by_its_package(monkeypatch):
    """pointnet2_ops' own classes are CUDA's alone; others of their attributes stay."""
    arguments = (4, 12, [0.4, 0.8], [4, 7], [(8, 9), (6, 5)])
    module = OnGPU(*arguments)
    assert not fusedops.fuse(module).blocks
    monkeypatch.setattr(OnGPU, "__module__", "pointnet2_ops.pointnet2_modules")
    torch.manual_seed(1)
    ours = shuffle_norms(OnGPU(*arguments)).double()
    theirs = twins.WijmansAbstraction(*arguments).double()
    theirs.load_state_dict(ours.state_dict())
    assert [block.kind for block in fusedops.fuse(ours).blocks] == ["set_abstraction"]
    assert_same(theirs, ours, inputs("wijmans"))


def test_hooks_copies_and_pickles():
    name = "yan_msg"
    theirs, ours = layer(name).eval(), layer_fused(name).eval()
    given = inputs(name)
    called = []
    ours.conv_blocks[0][0].register_forward_hook(lambda *_: called.append(1))
    assert_same(theirs, ours, given)
    assert called
    ours = pickle.loads(pickle.dumps(copy.deepcopy(layer_fused(name).eval())))
    calls = assert_same(theirs, ours, given)
    assert not any(call.startswith("aten.convolution") for call in calls.names)


def layer_fused(name):
    module = layer(name)
    fusedops.fuse(module)
    return module


def test_other_arguments_run_their_own_forward():
    theirs, ours = layer("yan", dtype=torch.float32), layer_fused("yan").float()
    xyz, features = inputs("yan", dtype=torch.float32)
    assert_same(theirs, ours, [xyz, features], rtol=1e-4)
    with pytest.raises(RuntimeError):
        ours(xyz.double(), features)


# ---- torch_geometric ----


@pytest.fixture(params=["twin", "torch_geometric"])
def geometric(request):
    """torch_geometric, or a twin of it; with a search in torch where pyg-lib is missing."""
    if request.param == "twin":
        yield SimpleNamespace(nn=nn_of_twins)
        return
    pyg = pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    import torch_geometric.typing

    if torch_geometric.typing.WITH_KNN:
        yield pyg
        return
    library = torch.library.Library("pyg", "FRAGMENT")
    library.define("knn(Tensor x, Tensor y, Tensor? a, Tensor? b, int k, bool c, int w) -> Tensor")
    library.impl("knn", _knn, "CompositeExplicitAutograd")
    torch_geometric.typing.WITH_KNN = True
    yield pyg
    torch_geometric.typing.WITH_KNN = False
    library._destroy()


def _knn(x, y, x_ptr, y_ptr, k, cosine, workers):
    """Rows (query, neighbour) of the k nearest within each cloud."""
    bounds = [0, len(x)] if x_ptr is None else x_ptr.tolist()
    found = []
    for start, end in pairwise(bounds):
        cloud = x[start:end]
        dist2 = (cloud.unsqueeze(1) - cloud).square().sum(-1)
        near = dist2.topk(min(k, end - start), largest=False)[1] + start
        query = torch.arange(start, end, device=x.device).unsqueeze(1).expand_as(near)
        found.append(torch.stack([query.flatten(), near.flatten()]))
    return torch.cat(found, 1)


def mlps(pyg, widths):
    """MLPs in the forms that people write them in."""
    make = pyg.nn.MLP
    a, b, c = widths
    return {
        "default": make([a, b, c]),
        "full": make([a, b, c], plain_last=False, act=nn.LeakyReLU(0.2)),
        "bare": make([a, b, c], norm=None, bias=False),
        "sequential": nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c)),
        "nested": nn.Sequential(
            nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()),
            nn.Sequential(nn.Linear(b, c), nn.BatchNorm1d(c), nn.ReLU()),
        ),
    }  # fmt: skip


FORMS = ("default", "full", "bare", "sequential", "nested")
every_form = pytest.mark.parametrize("form", FORMS)


def edges(points, centers, count, device):
    """Between 0 and 6 sources of every target, targets in order."""
    torch.manual_seed(4)
    source, target = [], []
    for i in range(centers):
        some = torch.randperm(points)[: i % 7 if i % 7 < count else count]
        source.append(some)
        target.append(torch.full_like(some, i))
    return torch.stack([torch.cat(source), torch.cat(target)]).to(device)


def trained(module, device):
    return shuffle_norms(module).to(device, torch.float64).train()


def runs_ours(calls, name):
    """No row of an edge went through torch's own indexing."""
    assert "aten.index_select" not in calls.names, name


@pytest.mark.parametrize("aggr", ["max", "mean", "sum"])
@every_form
def test_dynamic_edge_conv(geometric, device, form, aggr):
    torch.manual_seed(1)
    mlp = mlps(geometric, (8, 10, 6))[form]
    theirs = trained(geometric.nn.DynamicEdgeConv(mlp, k=5, aggr=aggr), device)
    ours = copy.deepcopy(theirs)
    report = fusedops.fuse(ours)
    assert "edge_conv" in [block.kind for block in report.blocks]
    x = torch.randn(40, 4, dtype=torch.float64, device=device, requires_grad=True)
    batch = torch.tensor([0] * 15 + [1] * 3 + [3] * 22, device=device)
    for given in ([x, batch], [x], [x, batch]):
        calls = assert_same_graph(theirs, ours, given)
        runs_ours(calls, form)
        theirs.eval(), ours.eval()


def assert_same_graph(theirs, ours, given):
    want = theirs(*given)
    with Calls() as calls:
        got = ours(*given)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    leaves = [x for x in given if isinstance(x, torch.Tensor) and x.is_floating_point()]
    leaves += [x for pair in given if isinstance(pair, tuple) for x in pair if x is not None]
    weight = torch.randn_like(want)
    grads = [
        torch.autograd.grad((y * weight).sum(), [*leaves, *model.parameters()], allow_unused=True)
        for y, model in ((got, ours), (want, theirs))
    ]
    for a, b in zip(*grads, strict=True):
        # NOTE: None, or zeros: a bias before batch statistics has no gradient.
        zero = torch.zeros((), dtype=torch.float64, device=want.device)
        a, b = (zero if g is None else g for g in (a, b))
        torch.testing.assert_close(a, b.expand_as(a), rtol=1e-9, atol=1e-8)
    for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    return calls


@every_form
def test_edge_conv(geometric, device, form):
    torch.manual_seed(1)
    mlp = mlps(geometric, (8, 10, 6))[form]
    theirs = trained(geometric.nn.EdgeConv(mlp, aggr="max"), device)
    ours = copy.deepcopy(theirs)
    fusedops.fuse(ours)
    x = torch.randn(40, 4, dtype=torch.float64, device=device, requires_grad=True)
    pairs = edges(40, 40, 6, device)
    shuffled = pairs[:, torch.randperm(pairs.shape[1], device=device)]
    for edge_index in (pairs, shuffled):
        runs_ours(assert_same_graph(theirs, ours, [x, edge_index]), form)
    if device == "cpu":  # on a GPU torch's own indexing asserts, which ends the process's context
        with pytest.raises((IndexError, RuntimeError)):
            ours(x, pairs + 39)


@pytest.mark.parametrize("loops", [True, False])
@every_form
def test_pointnet_conv(geometric, device, form, loops):
    torch.manual_seed(1)
    local = mlps(geometric, (7, 10, 6))[form]
    conv = geometric.nn.PointNetConv(local, nn.Linear(6, 5), add_self_loops=loops)
    theirs = trained(conv, device)
    ours = copy.deepcopy(theirs)
    report = fusedops.fuse(ours)
    assert "set_abstraction" in [block.kind for block in report.blocks]
    x = torch.randn(40, 4, dtype=torch.float64, device=device, requires_grad=True)
    pos = torch.randn(40, 3, dtype=torch.float64, device=device, requires_grad=True)
    for centers in (pos, pos[::4]):
        for features in (x, (x, None)):
            given = [features, (pos, centers), edges(40, len(centers), 6, device)]
            leaves = [x, pos]
            calls = same_values(theirs, ours, given, leaves)
            runs_ours(calls, form)


def same_values(theirs, ours, given, leaves):
    want = theirs(*given)
    with Calls() as calls:
        got = ours(*given)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(want)
    for a, b in zip(
        torch.autograd.grad((got * weight).sum(), leaves),
        torch.autograd.grad((want * weight).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-8)
    return calls


def test_pointnet_conv_of_coordinates_alone(geometric, device):
    torch.manual_seed(1)
    theirs = trained(geometric.nn.PointNetConv(geometric.nn.MLP([3, 8, 6])), device)
    ours = copy.deepcopy(theirs)
    fusedops.fuse(ours)
    pos = torch.randn(30, 3, dtype=torch.float64, device=device, requires_grad=True)
    given = [None, pos, edges(30, 30, 6, device)]
    runs_ours(same_values(theirs, ours, given, [pos]), "coordinates")


def test_what_geometric_convolutions_leave_alone(geometric):
    theirs = geometric.nn.EdgeConv(mlps(geometric, (8, 10, 6))["bare"], aggr="max")
    ours = copy.deepcopy(theirs)
    fusedops.fuse(ours)
    x, star = torch.randn(200, 4), torch.zeros(2, 199, dtype=torch.int64)
    star[0] = torch.arange(1, 200)
    cases = [((x, x), edges(200, 200, 6, "cpu")), (x, star), (x, star[:, :0])]
    for given in cases:
        torch.testing.assert_close(ours(*given), theirs(*given))
    called = []
    ours.register_message_forward_hook(lambda *_: called.append(1))
    ours(x, edges(200, 200, 6, "cpu"))
    assert called
    dropped = geometric.nn.EdgeConv(geometric.nn.MLP([8, 6, 4], dropout=0.5))
    fusedops.fuse(dropped)
    pairs = edges(200, 200, 6, "cpu")
    assert not torch.equal(dropped(x, pairs), dropped(x, pairs))


@every_form
def test_geometric_mlp(geometric, device, form):
    torch.manual_seed(1)
    theirs = trained(mlps(geometric, (8, 10, 6))[form], device)
    ours = copy.deepcopy(theirs)
    fusedops.fuse(ours)
    x = torch.randn(20, 8, dtype=torch.float64, device=device, requires_grad=True)
    same_values(theirs, ours, [x], [x])
    if form == "bare":
        ours.eval()
        with Calls() as calls:
            ours(x.detach())
        assert calls.ours == ["linear", "linear"]
