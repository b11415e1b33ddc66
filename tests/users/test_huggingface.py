"""transformers and `kernels` on our layers: a tiny Llama through from_pretrained, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import fusedops

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("kernels", reason="the package `kernels` is not installed")
if not transformers.utils.import_utils.is_kernels_available():
    pytest.skip("this transformers wants another version of `kernels`", allow_module_level=True)

from fusedops.integrations import huggingface, layers  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder: Path = tmp_path_factory.mktemp("llama")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)
    return folder


def run(model: Any, device: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The loss's gradients and the logits of some tokens."""
    tokens = torch.arange(24, device=device).reshape(2, 12) % 50
    out = model(tokens, labels=tokens)
    out.loss.backward()
    return out.logits.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def calls(model: Any, device: str) -> set[str]:
    """The ops of ours that a forward runs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = set()

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.add(str(func).split(".")[1] if str(func).startswith("fusedops") else "")
            return func(*args, **(kwargs or {}))

    with Record(), torch.no_grad():
        model(torch.arange(12, device=device)[None])
    return seen - {""}


@pytest.mark.parametrize("device", DEVICES)
def test_from_pretrained_switches_it_on(saved: Path, device: str) -> None:
    config = huggingface.kernel_config()
    load = transformers.AutoModelForCausalLM.from_pretrained
    plain = load(saved).to(device)
    model = load(saved, use_kernels=True, kernel_config=config, device_map=None)
    assert config.report == {"RMSNorm": "mapped", "rotary_pos_emb": "mapped"}
    model.to(device)
    if device == "cuda":
        model.set_use_kernels(True, huggingface.kernel_config())
    logits, gradients = run(model, device)
    want, wanted = run(plain, device)
    torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-4)
    assert len(gradients) == len(wanted)
    for got, expected in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    ours = calls(model, device)
    assert any("rms_norm" in name for name in ours), ours
    assert any("rope" in name for name in ours), ours
    assert calls(plain, device) <= {"rope"}  # the function of rotation is one for all models


def test_training_mode(saved: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(saved)
    model.train()
    model.set_use_kernels(True, huggingface.kernel_config())
    assert any("rms_norm" in name for name in calls(model, "cpu"))


def test_a_name_is_not_enough(saved: Path) -> None:
    """A layer of the same name that computes something else keeps its own forward."""
    model = transformers.AutoModelForCausalLM.from_pretrained(saved)
    norm = type(model.model.norm)

    class Shifted(norm):  # type: ignore[misc,valid-type]
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden_states) + self.weight

    model.model.norm.__class__ = Shifted
    tokens = torch.arange(12)[None]
    want = model(tokens).logits
    config = huggingface.kernel_config()
    model.set_use_kernels(True, config)
    assert config.report["RMSNorm"] == "Shifted computes something else"
    assert config.report["rotary_pos_emb"] == "mapped"
    assert not any("rms_norm" in name for name in calls(model, "cpu"))
    torch.testing.assert_close(model(tokens).logits, want, rtol=1e-4, atol=1e-4)


def test_a_layer_without_epsilon_is_left_alone(saved: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(saved)
    for module in model.modules():
        module.__dict__.pop("variance_epsilon", None)
    config = huggingface.kernel_config()
    config.sanitize_kernel_mapping(model)
    assert config.report["RMSNorm"].startswith("LlamaRMSNorm differs: AttributeError")


def test_weights_without_memory_are_left_alone() -> None:
    """What is offloaded lies on the meta device: nothing can be compared there."""
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    config = huggingface.kernel_config()
    config.sanitize_kernel_mapping(model)
    assert config.report["RMSNorm"].startswith("LlamaRMSNorm differs: ")


def test_the_package_loads(tmp_path: Path, saved: Path) -> None:
    """As `kernels` finds it: a variant folder with metadata and layers."""
    import kernels

    folder = huggingface.write_kernel_package(tmp_path / "fusedops-kernels")
    package = kernels.get_local_kernel(folder, backend="cpu")
    assert package.layers.RMSNorm is layers.RMSNorm
    again = huggingface.write_kernel_package(folder)
    assert again == folder
    model = transformers.AutoModelForCausalLM.from_pretrained(saved)
    repository = kernels.LocalLayerRepository(repo_path=folder, layer_name="RMSNorm")
    if not torch.cuda.is_available():
        with kernels.use_kernel_mapping({"RMSNorm": {"cpu": repository}}, inherit_mapping=False):
            kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu")
        assert any("rms_norm" in name for name in calls(model, "cpu"))


def test_repositories_compare_by_layer() -> None:
    one, same = huggingface.InstalledLayer("RMSNorm"), huggingface.InstalledLayer("RMSNorm")
    assert one == same
    assert hash(one) == hash(same)
    assert one != huggingface.InstalledLayer("rotary_pos_emb")
    assert str(one) == f"fusedops {fusedops.__version__} (layer `RMSNorm`)"
