"""fuse on models with a cross entropy: torch's function or module, or a function of theirs."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.nn import CrossEntropyLoss

import fusedops
from modules import losses
from modules.losses import (
    CLASSES,
    MODELS,
    Bert,
    ByPosition,
    Criterion,
    LanguageModel,
    NanoGPT,
    Options,
    WithoutSelf,
    causal,
    check,
    counting,
    detached,
    inputs,
    masked,
    narrow,
    of_clamped,
    pair,
    smoothed,
    two_ahead,
)  # fmt: skip
from util import HALVES, calls_of, make, name

DTYPES = [torch.float32, *HALVES]


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_runs_as_our_op(device, kind):
    original, model, report = pair(device, kind=kind)
    assert report.losses == MODELS[kind]
    assert "losses" in str(report)
    assert type(model).__name__ == kind.__name__
    assert isinstance(model, kind)
    assert model.state_dict().keys() == original.state_dict().keys()
    check(original, model, *inputs(device))
    assert fusedops.fuse(model).losses == []
    check(original, model, *inputs(device))


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_half_precision(device, dtype, kind):
    original, model, _ = pair(device, dtype, kind)
    check(original, model, *inputs(device, dtype), tolerance=3e-2)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_half_logits_are_never_copied_to_float32(device, dtype):
    _, model, _ = pair(device, dtype)
    x, labels = inputs(device, dtype)
    assert model(x, labels).dtype is torch.float32
    assert not any("to_copy" in call for call in calls_of(model, x, labels).names)


def test_float64_where_the_function_keeps_it(device):
    original, model, _ = pair(device, torch.float64, NanoGPT)
    check(original, model, *inputs(device, torch.float64))
    original, model, _ = pair(device, torch.float64)  # converts to float32
    check(original, model, *inputs(device, torch.float64), ours=0)


# ---- what a function takes ----


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("kind", [LanguageModel, ByPosition], ids=lambda kind: kind.__name__)
def test_other_arguments_of_a_function(device, dtype, kind):
    original, model, _ = pair(device, dtype, kind)
    x, labels = inputs(device, dtype)
    check_it = lambda *args, **kwargs: check(  # noqa: E731
        original, model, x, *args, tolerance=1e-5 if dtype is torch.float32 else 1e-2, **kwargs
    )
    for count in (7, torch.tensor(7, device=device), torch.tensor(7), torch.tensor(7.0)):
        check_it(labels, num_items_in_batch=count)
    valid = labels.clamp(0)
    check_it(valid, ignore_index=3)
    check_it(labels, shift_labels=valid)
    check_it(None, shift_labels=valid, num_items_in_batch=12)
    if kind is ByPosition:
        check_it(labels, 7, -100, valid)


def test_arguments_by_other_names(device, monkeypatch):
    original, model, _ = pair(device)
    x, labels = inputs(device)
    check(original, model, x, labels, cu_seq_lens=labels, label_smoothing=0.5)  # it reads neither
    with pytest.raises(TypeError, match="multiple values"):
        model(x, labels, source=x)
    monkeypatch.setattr(LanguageModel, "function", staticmethod(losses.handing_on))
    original, model, _ = pair(device)
    check(original, model, x, labels)
    check(original, model, x, labels, label_smoothing=0.5, ours=0)
    with pytest.raises(TypeError, match="unexpected"):
        model(x, labels, cu_seq_lens=labels)


def test_all_labels_ignored(device):
    for kind in (LanguageModel, NanoGPT, Bert):
        original, model, _ = pair(device, kind=kind)
        x, labels = inputs(device)
        labels[:] = -100
        check(original, model, x, labels)
        assert model(x, labels).isnan()


@pytest.mark.parametrize(
    "function",
    ["cut", "cut_by_name", "cut_by_default", "last_hundred", "first_two", "by_batch"],
)
def test_what_cuts_longer_rows_than_the_probes_stays(device, monkeypatch, function):
    monkeypatch.setattr(LanguageModel, "function", staticmethod(getattr(losses, function)))
    original, model, report = pair(device)
    assert report.losses == []
    x = make(5, 130, 16, dtype=torch.float32, device=device)
    labels = torch.randint(CLASSES, (5, 130), device=device)
    check(original, model, x, labels, ours=0)


def test_other_arguments_run_the_function(device):
    original, model, _ = pair(device)
    x, labels = inputs(device)
    check(original, model, x, labels, num_items_in_batch=7.5, ours=0)
    check(original, model, x[0], labels[0], ours=0)
    check(original, model, x, labels[:, :, None], shift_labels=labels.flatten(), ours=0)
    check(original, model, x.transpose(0, 1).contiguous(), labels, shift_labels=labels, ours=0)
    with pytest.raises(TypeError, match="missing"):
        model.loss_function(x, labels)
    with pytest.raises(TypeError, match="multiple values"):
        model.loss_function(x, labels, CLASSES, labels=labels)


@pytest.mark.parametrize(
    "function",
    [smoothed, of_clamped, detached, two_ahead, counting, lambda *args, **kwargs: causal(*args)],
    ids=["smoothed", "clamped", "detached", "two ahead", "counting", "lambda"],
)
def test_what_is_something_else_stays(device, monkeypatch, function):
    monkeypatch.setattr(LanguageModel, "function", staticmethod(function))
    original, model, report = pair(device)
    assert report.losses == []
    assert type(model) is LanguageModel
    assert model.loss_function is function
    assert original.loss_function is function


@pytest.mark.parametrize("function", [masked, narrow], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_other_functions(device, monkeypatch, function, dtype):
    monkeypatch.setattr(LanguageModel, "function", staticmethod(function))
    original, model, report = pair(device, dtype)
    assert report.losses == MODELS[LanguageModel]
    check(original, model, *inputs(device, dtype), tolerance=3e-2)
    assert model(*inputs(device, dtype)).dtype is (dtype if function is narrow else torch.float32)


# ---- what torch's function takes ----


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "sum", "ignore_index": 3},
        {"reduction": "none", "label_smoothing": 0.1},
        {"weight": True},
        {"size_average": False},
        {"reduce": False},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*size_average and reduce.*")
def test_options(device, monkeypatch, dtype, options):
    if "weight" in options:
        options = {"weight": torch.rand(CLASSES, device=device).to(dtype)}
    monkeypatch.setattr(Options, "options", options)
    original, model, _ = pair(device, dtype, Options)
    x, labels = inputs(device, dtype)
    ours = int(options.keys() <= {"reduction", "ignore_index", "label_smoothing"})
    tolerance = 1e-5 if dtype is torch.float32 else 5e-2
    check(original, model, x, labels.clamp(0).flatten(), ours=ours, tolerance=tolerance)


def test_other_targets_and_shapes_are_torchs(device):
    original, model, _ = pair(device, kind=Options)
    x, labels = inputs(device)
    odds = torch.rand(12, CLASSES, device=device)
    check(original, model, x, odds / odds.sum(1, keepdim=True), ours=0)
    check(original, model, x[0, 0], labels[0, 0])
    with pytest.raises(ValueError, match="batch_size"):
        model(x, labels.flatten()[:5])
    planes = make(2, 5, 3, 4, dtype=torch.float32, device=device)
    target = torch.ones(2, 3, 4, dtype=torch.int64, device=device)
    call = lambda: model._fused_cross_entropy(F.cross_entropy, planes, target)  # noqa: E731
    assert calls_of(call).ours == []  # the op would copy them
    with pytest.raises(ValueError, match="not a valid value for reduction"):
        model._fused_cross_entropy(F.cross_entropy, planes, target, reduction="no")
    with pytest.raises(TypeError, match="missing"):
        model._fused_cross_entropy(F.cross_entropy, planes)


def test_labels_that_a_function_cannot_view_are_its_error(device, monkeypatch):
    original, model, _ = pair(device)
    x, labels = inputs(device)
    apart = labels.t().contiguous().t()
    check(original, model, x, apart)  # which it pads
    for one in (original, model):
        with pytest.raises(RuntimeError, match="view"):
            one(x, labels, shift_labels=apart)


def test_torchs_errors_are_torchs(device, monkeypatch):
    original, model, _ = pair(device, kind=Options)
    x, labels = inputs(device)
    monkeypatch.setattr(Options, "options", {"ignore_index": True})
    for one in (original, model):
        with pytest.raises(TypeError, match="must be int, not bool"):
            one(x, labels.flatten())
    rows, target = torch.ones(0, 0, device=device), labels.flatten()[:0]
    assert model._fused_cross_entropy(F.cross_entropy, rows, target).isnan()


# ---- later changes ----


def test_replaced_loss_functions_are_followed(device, monkeypatch):
    original, model, _ = pair(device)
    x, labels = inputs(device)
    for one in (original, model):
        one.loss_function = smoothed
    assert model.loss_function is smoothed
    check(original, model, x, labels, ours=0)
    for one in (original, model):
        del one._loss_function
    check(original, model, x, labels)
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "function", staticmethod(smoothed))
        check(original, model, x, labels, ours=0)
    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "loss_function", property(lambda self: detached))
        check(original, model, x, labels, ours=0)
    with monkeypatch.context() as patch:
        other = lambda source, target, *args, **kwargs: source.sum()  # noqa: E731
        patch.setattr(losses, "fixed_cross_entropy", other)
        check(original, model, x, labels, ours=0)
    with monkeypatch.context() as patch:
        patch.setattr(causal, "__defaults__", (3, -100, None))
        check(original, model, x, labels, ours=0)
    check(original, model, x, labels)


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_a_patched_cross_entropy_is_followed(device, monkeypatch, kind):
    original, model, _ = pair(device, kind=kind)
    x, labels = inputs(device)
    torchs = F.cross_entropy

    def double(*args, **kwargs):
        return 2 * torchs(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(F, "cross_entropy", double)
        check(original, model, x, labels, ours=0)
    check(original, model, x, labels)
    if kind in (Bert, Criterion):
        with monkeypatch.context() as patch:
            patch.setattr(CrossEntropyLoss, "forward", lambda self, x, y: double(x, y))
            check(original, model, x, labels, ours=0)
        with monkeypatch.context() as patch:
            patch.setattr(losses, "CrossEntropyLoss", lambda: double)
            check(original, model, x, labels, ours=int(kind is Criterion))


def test_a_class_without_its_property_is_followed(device, monkeypatch):
    original, model, _ = pair(device)
    x, labels = inputs(device)
    monkeypatch.setattr(LanguageModel, "loss_function", lambda self, logits, **_: logits.sum())
    check(original, model, x, labels, ours=0)
    for one in (original, model):
        one.loss_function = smoothed
        assert one.loss_function is smoothed
    check(original, model, x, labels, ours=0)
    for one in (original, model):
        del one.loss_function
        with pytest.raises(AttributeError):
            del one.loss_function
    check(original, model, x, labels, ours=0)
    monkeypatch.delattr(LanguageModel, "loss_function")
    for one in (original, model):
        assert not hasattr(one, "loss_function")


def test_a_function_of_the_class_that_is_no_method(device):
    original, model, _ = pair(device, kind=WithoutSelf)
    check(original, model, *inputs(device), ours=0)


def test_a_cross_entropy_that_was_patched_before_the_import_is_not_torchs():
    code = """
import torch, torch.nn.functional as F
from torch import nn
torchs = F.cross_entropy
F.cross_entropy = lambda *args, **kwargs: 2 * torchs(*args, **kwargs)
import fusedops
from modules import losses
x, labels = torch.randn(2, 6, 16), torch.ones(2, 6, dtype=torch.int64)
for kind in losses.MODELS:
    original, model, _ = losses.pair("cpu", kind=kind)
    assert torch.equal(model(x, labels), original(x, labels)), kind
"""
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=paths)


def test_a_replaced_forward_is_followed(device, monkeypatch):
    original, model, _ = pair(device, kind=NanoGPT)
    monkeypatch.setattr(NanoGPT, "forward", lambda self, x, labels: self.lm_head(x).sum())
    check(original, model, *inputs(device), ours=0)


def test_a_loss_function_without_a_setter(device):
    class Fixed(LanguageModel):
        @property
        def loss_function(self):
            return causal

    original, model, report = pair(device, kind=Fixed)
    assert report.losses == MODELS[LanguageModel]
    for one in (original, model):
        with pytest.raises(AttributeError):
            one.loss_function = smoothed
        with pytest.raises(AttributeError):
            del one.loss_function
    check(original, model, *inputs(device))


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_copies_and_pickles(device, kind):
    original, model, _ = pair(device, kind=kind)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(again).__name__ == kind.__name__
        check(original, again, *inputs(device))


def test_a_loss_function_is_what_it_stands_for(device):
    original, model, _ = pair(device)
    got = model.loss_function
    assert got.__name__ == "causal"
    assert got.__wrapped__ is original.loss_function
    again = pickle.loads(pickle.dumps(got))
    x, labels = inputs(device)
    logits = model.lm_head(x)
    torch.testing.assert_close(again(logits, labels, CLASSES), causal(logits, labels, CLASSES))


def test_hooks_run(device):
    original, model, _ = pair(device, kind=Criterion)
    calls = []
    model.register_forward_hook(lambda *a: calls.append("model"))
    model.criterion.register_forward_hook(lambda *a: calls.append("criterion"))
    check(original, model, *inputs(device))
    assert calls.count("model") == calls.count("criterion") > 0


def test_an_own_forward_of_the_criterion_runs(device):
    original, model, _ = pair(device, kind=Criterion)
    for one in (original, model):
        one.criterion.forward = lambda x, y: x.sum()
    check(original, model, *inputs(device), ours=0)


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_autocast(device, kind):
    original, model, _ = pair(device, kind=kind)
    x, labels = inputs(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        check(original, model, x, labels, tolerance=2e-2)
        assert model(x, labels).dtype is torch.float32


def test_torch_func_and_double_backward(device):
    original, model, _ = pair(device)
    x, labels = inputs(device)
    for one in (original, model):
        x = x.clone().requires_grad_()
        (dx,) = torch.autograd.grad(one(x, labels), x, create_graph=True)
        dx.square().sum().backward()
    torch.testing.assert_close(model.lm_head.weight.grad, original.lm_head.weight.grad)
    grads = [torch.func.grad(lambda x, m=m: m(x, labels))(x.detach()) for m in (original, model)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_compiled_code_is_torchs(device, kind):
    torch.compiler.reset()
    original, model, _ = pair(device, kind=kind)
    targets = []

    def backend(graph, example):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    x, labels = inputs(device)
    y = torch.compile(model, fullgraph=True, backend=backend)(x, labels)
    torch.testing.assert_close(y, original(x, labels))
    assert any("cross_entropy" in target for target in targets)
    assert not any("fusedops" in target for target in targets)


@pytest.mark.parametrize("model", ["Llama", "GPT2", "OPT", "T5", "Bert"])
def test_hugging_face(device, model):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 64,
        "num_layers": 1, "num_heads": 4, "d_model": 64, "d_kv": 16, "n_positions": 32, "n_embd": 64,
        "n_layer": 1, "n_head": 4, "d_ff": 48, "word_embed_proj_dim": 64, "ffn_dim": 48,
        "intermediate_size": 48, "dropout_rate": 0.0, "decoder_start_token_id": 0,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    kind = {"T5": "ForConditionalGeneration", "GPT2": "LMHeadModel", "Bert": "ForMaskedLM"}
    config = getattr(transformers, f"{model}Config")(**sizes)
    made = getattr(transformers, model + kind.get(model, "ForCausalLM"))(config)
    original = made.to(device).eval()
    fused = copy.deepcopy(original)
    assert len(fusedops.fuse(fused).losses) == 1
    ids = torch.arange(24, device=device).view(2, 12)
    run = lambda m: m(input_ids=ids, labels=ids)  # noqa: E731
    assert calls_of(run, fused).ours.count("cross_entropy") == 1
    torch.testing.assert_close(run(fused).loss, run(original).loss, rtol=1e-4, atol=1e-5)
