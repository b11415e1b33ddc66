"""tune: what it notes, measures and keeps. Without a GPU the kernels are torch functions."""

from __future__ import annotations

import functools
import sys

import pytest
import torch
from torch import nn

import fusedops
from fusedops import _C
from fusedops.__main__ import main
from fusedops._tuning.plan_store import GpuKey, merge_plans, problem_of, read_plans

tuning = sys.modules["fusedops._tuning.tune"]  # the function of that name hides the module
measure = sys.modules["fusedops._tuning.measure"]
CPU = torch.device("cpu")
KEY = GpuKey("NVIDIA H200", capability=90, sm_count=101, driver=13000, build="test")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path))
    yield
    _C.clear_tuned_plans()


def problem(m=256, n=128, k=64, **changes):
    fields = {"m": m, "n": n, "k": k, "dtype": "bfloat16", "math": "native", "epilogue": "fused"}
    layout = {"a_major": "k", "b_major": "k", "activation": 1}
    return fields | layout | {"lda": k, "ldb": k} | changes


def other_kernels(family):
    """Kernels that can run the problem and that selection does not choose, the best first."""
    answer = _C.plan_gemm(problem(), 90, 101)
    usable = [c for c in answer["candidates"] if c["rejected"] is None and c["family"] == family]
    ranked = [c["name"] for c in sorted(usable, key=lambda c: c["expected_us"])]
    return [name for name in dict.fromkeys(ranked) if name != answer["chosen"]["name"]]


FAST, WRONG, REFUSES = other_kernels("sm90")[:3]
CLUSTER = next(name for name in other_kernels("cluster") if name.endswith("1x1"))


@pytest.fixture
def on_paper(monkeypatch):
    """The CPU stands for the GPU of KEY; every kernel is torch's product."""
    monkeypatch.setattr(tuning, "gpu_key", lambda device: KEY)
    monkeypatch.setattr(tuning, "ROUNDS", 1)
    monkeypatch.setattr(measure, "our_call", _call)
    monkeypatch.setattr(tuning, "_time", _times)


def _call(problem, plan):
    def call(a, b, bias):
        if plan["name"] == REFUSES:
            raise RuntimeError("did not run")
        y = measure.expected(problem, (a, b, bias))
        return y * 2 if plan["name"] == WRONG else y

    return call


def _times(problem, plans, sets, rounds, device):
    """What only measuring finds: one kernel, in the bands that selection takes."""
    return [10.0 if (p["name"], p["swizzle"]) == (FAST, 32) else 12.0 for p in plans]


def run(problems, **options):
    return tuning.tune_problems(problems, CPU, **{"force": False, "progress": False} | options)


# ---- measuring ----


def test_the_fastest_is_kept_stored_and_used(on_paper):
    report = run([problem()])
    (tuned,) = report.tuned
    assert tuned.kernel == f"{FAST}, raster width 32"
    assert tuned.us == 10.0
    assert tuned.gain == pytest.approx(1.2)
    assert report.path == KEY.path
    (stored,) = read_plans(KEY.path)
    assert problem_of(stored) == problem_of(problem())
    assert (stored["swizzle"], stored["us"], stored["default_us"]) == (32, 10.0, 12.0)
    assert _C.plan_gemm(problem(), 90, 101)["chosen"]["name"] == FAST
    text = str(report)
    assert "tuned 1 product(s) on NVIDIA H200, 0 known before, skipped 0" in text
    assert "256x128x64 bfloat16 TN relu" in text
    assert "1.20x" in text


def test_a_cluster_kernel_tries_every_number_of_tiles(on_paper, monkeypatch):
    def times(problem, plans, *_):
        us = {1: 10.0, 4: 9.0, 8: 9.5}
        return [us[p["swizzle"]] if p["name"] == CLUSTER else 12.0 for p in plans]

    monkeypatch.setattr(tuning, "_time", times)
    (tuned,) = run([problem()]).tuned
    assert tuned.kernel == f"{CLUSTER}, clusters of 4 tiles"
    assert _C.plan_gemm(problem(), 90, 101)["chosen"]["swizzle"] == 4


def test_a_gain_in_the_noise_keeps_the_present_choice(on_paper, monkeypatch):
    monkeypatch.setattr(
        tuning,
        "_time",
        lambda problem, plans, *_: [99.5 if p["swizzle"] == 16 else 100.0 for p in plans],
    )
    (tuned,) = run([problem()]).tuned
    assert tuned.kernel == tuned.before
    assert tuned.gain == 1.0


def test_what_is_wrong_or_cannot_run_never_wins(on_paper, monkeypatch):
    seen = []
    monkeypatch.setattr(
        tuning, "_time", lambda problem, plans, *_: seen.extend(plans) or [1.0] * len(plans)
    )
    run([problem()])
    names = {plan["name"] for plan in seen}
    assert FAST in names
    assert not names & {WRONG, REFUSES}


def test_known_products_are_not_measured_again(on_paper):
    run([problem()])
    _C.clear_tuned_plans()
    again = run([problem(), problem(m=512)])
    assert (again.known, len(again.tuned)) == (1, 1)
    assert _C.plan_gemm(problem(), 90, 101)["tuned"]  # known plans are in use as well
    assert len(run([problem()], force=True).tuned) == 1


def test_a_stored_plan_that_this_build_refuses_is_measured_anew(on_paper):
    run([problem()])
    (stored,) = read_plans(KEY.path)
    merge_plans(KEY, [stored | {"swizzle": 0}])
    _C.clear_tuned_plans()
    again = run([problem()])
    assert (again.known, len(again.tuned)) == (0, 1)
    assert _C.plan_gemm(problem(), 90, 101)["chosen"]["swizzle"] == 32


def test_what_others_store_meanwhile_stays(on_paper, monkeypatch):
    before = tuning.install

    def install(key, plans):
        merge_plans(KEY, [{**p, "m": 7} for p in plans])
        return before(key, plans)

    monkeypatch.setattr(tuning, "install", install)
    run([problem()])
    assert {p["m"] for p in read_plans(KEY.path)} == {7, 256}


def test_a_cache_that_cannot_be_written_serves_this_process(on_paper, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="ignoring the tuned plans"):
        report = run([problem()])
    assert report.path is None
    assert "this process only" in str(report)
    assert any("not stored" in reason for _, reason in report.skipped)
    assert _C.plan_gemm(problem(), 90, 101)["tuned"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "float64"}, "float64"),
        ({"dtype": "float32", "math": "fp32"}, "fp32-accurate"),
        ({"k": 0}, "nothing to compute"),
        ({"epilogue": "grad"}, "the grad epilogue"),
    ],
)
def test_what_is_not_tunable_is_skipped_with_a_reason(on_paper, changes, reason):
    report = run([problem(**changes)])
    assert not report.tuned
    assert reason in report.skipped[0][1]


@pytest.mark.parametrize("layout", [("k", "k"), ("k", "mn"), ("mn", "mn"), ("mn", "k")])
def test_operands_have_the_layout_and_alignment_of_the_problem(layout):
    fields = problem(m=20, n=24, k=40, a_major=layout[0], b_major=layout[1], lda=1003, ldb=264)
    a, b, bias = measure.make_inputs(fields, CPU)
    assert (a.shape, b.shape, bias.shape) == ((20, 40), (40, 24), (24,))
    strides_a = a.stride() if layout[0] == "k" else a.t().stride()
    strides_b = b.t().stride() if layout[1] == "k" else b.stride()
    assert strides_a == (64 + 1003 % 64, 1)
    assert strides_b == (64 + 264 % 64, 1)


def test_rounds_are_shuffled_and_the_median_counts(monkeypatch):
    orders = []

    def sample(queued, sets, device):
        orders.append([call() for call, _ in queued])
        assert {calls for _, calls in queued} == {1, 15, measure.MOST_CALLS}
        return [100.0 * name + len(orders) ** 2 for name in orders[-1]]

    monkeypatch.setattr("fusedops._timing.backlog.sample", sample)
    guesses = [1000.0, 10.0, 0.1, 0.1, 0.1]
    calls = [(functools.partial(int, i), us) for i, us in enumerate(guesses)]
    assert measure.median_us(calls, [()], 5, CPU) == [9.0, 109.0, 209.0, 309.0, 409.0]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    # In rotated rounds each call would always follow the same one.
    before = [{order[order.index(i) - 1] for order in orders} for i in range(5)]
    assert all(len(names) > 1 for names in before)


def test_candidates_run_and_come_by_expected_time():
    found = measure.candidates(problem(), KEY)
    times = [c["expected_us"] for c in found]
    assert times == sorted(times)
    assert {c["family"] for c in found} >= {"sm90", "cluster"}
    assert all(c["rejected"] is None for c in found)


def test_inputs_fill_sets_and_go_without_bias():
    sets, reference = measure.make_sets(problem(), CPU, with_bias=False)
    a, b, bias = sets[0]
    assert bias is None
    torch.testing.assert_close(reference, torch.relu(a @ b))
    assert measure.make_sets(problem(epilogue="accumulator"), CPU)[0][0][2] is None
    assert measure.make_sets(problem(), CPU)[0][0][2] is not None


def test_what_is_nan_is_not_right(monkeypatch):
    (inputs, *_), reference = measure.make_sets(problem(), CPU)
    monkeypatch.setattr(measure, "our_call", lambda *_: lambda *_: reference * float("nan"))
    assert not measure.is_right(problem(), measure.error_of(problem(), {}, inputs, reference))
    assert not measure.is_right(problem(), None)
    assert measure.is_right(problem(), 0.0)


# ---- what a model computes ----


class Model(nn.Module):
    """Selection is asked as on a GPU: forward a product, backward another."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.weight.main_grad = torch.full((3,), 5.0)
        self.weight.grad_added_to_main_grad = False
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps += 1
        torch.rand(1)
        _C.plan_gemm(problem(), 90, 101)
        y = x * self.weight
        if y.requires_grad:
            y.register_hook(self._backward)
        return {"y": [y]}

    def _backward(self, grad):
        self.weight.main_grad.zero_()
        self.weight.grad_added_to_main_grad = True
        _C.plan_gemm(problem(a_major="mn", b_major="mn", activation=0), 90, 101)


def test_a_model_is_recorded_forward_and_backward(on_paper):
    model, x = Model(), torch.ones(3)
    found = tuning.record_problems(model, (x,), True, CPU)
    assert [p["a_major"] for p in found] == ["k", "mn"]
    assert [p["a_major"] for p in tuning.record_problems(model, (x,), False, CPU)] == ["k"]


def test_recording_leaves_the_model_as_it_was(on_paper):
    model = Model()
    state, main_grad = torch.get_rng_state(), model.weight.main_grad
    tuning.record_problems(model, (torch.ones(3),), True, CPU)
    assert model.steps == 0
    assert model.weight.grad is None
    assert model.weight.main_grad is main_grad
    assert (main_grad == 5).all()
    assert model.weight.grad_added_to_main_grad is False
    assert (torch.get_rng_state() == state).all()


def step_of(model):
    return lambda x: model(x)


class Trainer:
    def __init__(self, model):
        self.model = model

    def step(self, x):
        return self.model(x)


@pytest.mark.parametrize(
    "call",
    [
        step_of,
        lambda model: model.forward,
        lambda model: functools.partial(model.forward),
        lambda model: functools.partial(lambda m, x: m(x), model),
        lambda model: Trainer(model).step,
    ],
    ids=["closure", "bound", "partial", "argument", "trainer"],
)
def test_a_function_is_recorded_like_its_model_and_leaves_it_as_it_was(on_paper, call):
    model = Model()
    main_grad = model.weight.main_grad
    found = tuning.record_problems(call(model), (torch.ones(3),), True, CPU)
    assert [p["a_major"] for p in found] == ["k", "mn"]
    assert model.steps == 0
    assert model.weight.main_grad is main_grad
    assert (main_grad == 5).all()


def test_a_model_among_the_inputs_is_left_as_it_was(on_paper):
    model = Model()
    tuning.record_problems(lambda m, x: m(x), (model, torch.ones(3)), True, CPU)
    assert model.steps == 0


def test_a_failing_model_stops_the_recorder(on_paper):
    def fails(x):
        raise KeyError("model")

    with pytest.raises(KeyError):
        tuning.record_problems(fails, (1,), True, CPU)
    _C.plan_gemm(problem(), 90, 101)
    assert _C.stop_recording() == []


# ---- arguments ----


@pytest.fixture
def pretend_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def test_arguments_are_checked(pretend_gpu):
    with pytest.raises(ValueError, match="tune: activation must be"):
        fusedops.tune([(1, 2, 3)], activation="softmax")
    for shapes in (3, [(1, 2)], ["abc"]):
        with pytest.raises(TypeError, match="tune: model_or_shapes must be a callable"):
            fusedops.tune(shapes)
    with pytest.raises(TypeError, match="without inputs"):
        fusedops.tune([(1, 2, 3)], torch.ones(1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible")
def test_without_a_gpu_it_says_so():
    with pytest.raises(RuntimeError, match="tune: a CUDA GPU must be visible"):
        fusedops.tune([(64, 64, 64)])
    with pytest.raises(SystemExit, match=r"^tune: a CUDA GPU must be visible"):
        main(["tune", "8x8x8"])


# ---- on a GPU ----


@pytest.mark.gpu
def test_shapes_are_tuned_on_a_gpu():
    shapes = [(512, 256, 128), (8, 512, 1024), (65, 33, 17)]
    report = fusedops.tune(shapes, activation="gelu", progress=False)
    assert not report.skipped, report
    key = tuning.gpu_key(torch.device("cuda", 0))
    stored = read_plans(key.path)
    # Inference forward, training forward, dx, dweight of each.
    assert len(report.tuned) == len(stored) == 12
    assert {p["epilogue"] for p in stored} == {"fused", "preact"}
    assert all(t.us <= t.before_us for t in report.tuned)
    assert fusedops.tune(shapes, activation="gelu", progress=False).known == 12
    x, w, b = (torch.randn(s, device="cuda").bfloat16() for s in [(512, 128), (256, 128), (256,)])
    why = fusedops.explain(x, w, b, "gelu").products[0]
    assert why.measured_us is not None
    assert "fusedops.tune" in why.why


@pytest.mark.gpu
def test_tuned_plans_serve_calls_and_give_the_same_result():
    x, w, b = (torch.randn(s, device="cuda").bfloat16() for s in [(512, 256), (384, 256), (384,)])
    before = fusedops.linear(x, w, b, "relu")
    key = tuning.gpu_key(x.device)
    fields = problem(m=512, n=384, k=256)
    usable = [
        c
        for c in _C.plan_gemm(fields, key.capability, key.sm_count)["candidates"]
        if c["rejected"] is None
    ]
    reference = torch.relu(torch.addmm(b.float(), x.float(), w.float().t()))
    for candidate in usable[:: max(1, len(usable) // 6)]:
        _C.add_tuned_plan(fields, candidate | {"us": 1.0}, key.capability, key.sm_count)
        assert fusedops.explain(x, w, b, "relu").products[0].plan["name"] == candidate["name"]
        y = fusedops.linear(x, w, b, "relu")
        torch.testing.assert_close(y, before, rtol=2e-2, atol=2e-2)
        assert (y.float() - reference).norm() <= 4e-3 * reference.norm()


@pytest.mark.gpu
def test_a_model_is_tuned_on_a_gpu():
    model = nn.Sequential(
        fusedops.nn.Linear(256, 512, activation="relu"), fusedops.nn.Linear(512, 64)
    ).to("cuda", torch.bfloat16)
    x = torch.randn(1024, 256, device="cuda").bfloat16()
    report = fusedops.tune(model, x, progress=False)
    # Two forward products, dweight of both, dx of the second.
    assert len(report.tuned) == 5, report
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.gpu
def test_mixed_precision_gradients_are_tuned_too():
    layer = fusedops.nn.Linear(256, 512).cuda()
    x = torch.randn(1024, 256, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        report = fusedops.tune(layer, x, progress=False)
    assert any("accumulator" in t.product for t in report.tuned), report


@pytest.mark.gpu
def test_tf32_is_tuned_and_fp32_skipped():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        tuned = fusedops.tune([(1024, 512, 1024)], dtype=torch.float32, progress=False)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert tuned.tuned
    assert not tuned.skipped
    exact = fusedops.tune([(1024, 512, 1024)], dtype=torch.float32, progress=False)
    assert not exact.tuned
    assert all("fp32-accurate" in reason for _, reason in exact.skipped)
