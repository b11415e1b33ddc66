"""fusedops.inductor on whole models: Hugging Face's, DDP's and FSDP2's."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import fusedops
from integration.test_inductor import (
    BLOCKS,
    K,
    assert_close,
    compiled,
    inputs,
    make,
    step,
    without_codegen,
)

SIZES = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8, "use_cache": False}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# Class, options, kinds of what is found.
TRANSFORMERS = {
    "Llama": ("ForCausalLM", SIZES | GROUPED, ["linear_cross_entropy", *2 * ["gated_mlp"]]),
    "Qwen3": ("ForCausalLM", SIZES | GROUPED, ["linear_cross_entropy", *2 * ["gated_mlp"]]),
    "Gemma2": ("ForCausalLM", SIZES | GROUPED, ["linear_cross_entropy", *2 * ["gated_mlp"]]),
    "Mixtral": (
        "ForCausalLM",
        SIZES | GROUPED | {"num_local_experts": 4},
        ["linear_cross_entropy"],
    ),
    "Bert": ("ForMaskedLM", SIZES | NO_DROPOUT, ["linear_cross_entropy", *2 * ["mlp"]]),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_hugging_face(device, name):
    transformers = pytest.importorskip("transformers")
    suffix, options, kinds = TRANSFORMERS[name]
    if name == "Mixtral" and device == "cuda":
        kinds = []  # the experts read a number on the host there, which torch.compile cannot trace
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, f"{name}{suffix}")(config).to(device).train()
    ids = torch.randint(3, 120, (2, 16), device=device)
    labels = ids.clone()
    labels[:, :3] = -100

    def gradients(function):
        loss = function(input_ids=ids, labels=labels)
        parameters = [p for p in model.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return [loss.detach(), *(g for g in found if g is not None)]

    def function(**given):
        return model(**given).loss

    ours = fusedops.inductor(force=True)
    torch._dynamo.reset()
    run = torch.compile(function, backend=without_codegen(ours["options"]))
    got = gradients(run)
    found = ours.report.kinds()
    if name == "Mixtral" and device == "cpu":
        assert found.count("permuted_rows") == 6  # tokens and weights by expert, and back
    others = ("embedding_grad", "permuted_rows")
    assert [kind for kind in found if kind not in others] == kinds
    assert ("embedding_grad" in found) is bool(kinds)
    assert not any("cannot read" in left.reason for left in ours.report.left)
    # A key's bias gets only rounding as its gradient: softmax does not see it.
    pairs = [(a, b) for a, b in zip(got, gradients(function), strict=True) if b.abs().max() > 1e-6]
    assert len(pairs) > len(got) // 2
    assert_close(*zip(*pairs, strict=True), 1e-4)


@pytest.fixture
def one_process(device):
    """A process group of this process alone."""
    import torch.distributed as dist

    if not dist.is_available():
        pytest.skip("torch without torch.distributed")
    backend = {"cpu": "gloo", "cuda": "nccl"}[device]
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def parallel(kind, device):
    torch.manual_seed(0)
    model = nn.Sequential(
        make("llama", device), nn.LayerNorm(K, device=device), make("gelu", device)
    )
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)  # a block each
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device, (1,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
@pytest.mark.usefixtures("one_process")
def test_data_parallel(device, kind, monkeypatch):
    monkeypatch.setattr(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 4200)
    model, x = parallel(kind, device), inputs(device)
    ours = fusedops.inductor(force=True)

    def gradients(function):
        model.zero_grad()
        function(x).square().sum().backward()
        full = (getattr(p.grad, "full_tensor", lambda g=p.grad: g)() for p in model.parameters())
        return [g.detach().clone() for g in full]

    torch._dynamo.reset()
    backend = without_codegen(ours["options"])
    if kind == "ddp":
        run = torch.compile(model, backend=backend)
    else:  # layer by layer, as torch asks for
        for layer in model:
            layer.compile(backend=backend)
        run = model
    got = gradients(run)
    torch._dynamo.reset()
    assert sorted(ours.report.kinds()) == ["gated_mlp", "mlp"]
    assert ours.report.graphs >= 2
    assert_close(got, gradients(torch.compiler.disable(model)), 2e-5)


@pytest.mark.parametrize("name", ["gelu", "llama"])
def test_a_dimension_that_is_marked_dynamic(device, name):
    model = make(name, device)
    ours = fusedops.inductor(force=True)
    run = compiled(model, ours)
    for batch in (4, 6):
        x = inputs(device, batch=batch).requires_grad_()
        torch._dynamo.mark_dynamic(x, 0)
        got = torch.autograd.grad(run(x).square().sum(), [x, *model.parameters()])
        want = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
        assert_close(got, want, 2e-5)
    assert ours.report.kinds() == [BLOCKS[name][1]]


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "recomputed"])
def test_a_policy_that_keeps_some_products(device, keep):
    """Selective checkpointing: products are kept or not, and with them what stands for them."""
    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    model, x = make("gelu", device), inputs(device)
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)

    def policy(context, op, *args, **kwargs):
        keeps = keep and op in products
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)

    def function(x):
        return checkpoint(model, x, use_reentrant=False, context_fn=contexts)

    ours = fusedops.inductor(force=True)
    got = step(compiled(function, ours), model, x)
    assert ours.report.kinds() == ["mlp"]
    assert_close(got, step(model, model, x), 2e-5)
