"""What `--shapes` names: sizes, a JSON or CSV file of them, or a model's config.json."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fusedops._core.text import shapes as shapes_of_text
from fusedops.bench.suites.base import SUITES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

Sizes = tuple[int, ...]

# Keys of a config.json, the first that is there counts.
WIDTH = ("hidden_size", "n_embd", "d_model", "dim", "embed_dim")
HIDDEN = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "encoder_ffn_dim", "hidden_dim")
HEADS = ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads")
KV_HEADS = ("num_key_value_heads", "n_head_kv")
HEAD_WIDTH = ("head_dim", "d_kv")
ACTIVATION = ("hidden_act", "activation_function", "hidden_activation", "dense_act_fn")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
NAMES = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "relu2": "relu2",
    "quick_gelu": "quick_gelu",
}
GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu"}
GATED_MODELS = ("gemma", "llama", "mistral", "mixtral", "qwen2", "qwen3", "olmo", "cohere")
PACKED_MODELS = ("phi3", "glm")  # gate and up are one weight
GEMMS = ("linear", "wgrad", "fp32", "fp8", "host")


class ShapesError(ValueError):
    """A file that names no shapes."""


@dataclass(frozen=True)
class Shapes:
    """Shapes for suites; those of "" are for every suite."""

    of_suite: dict[str, tuple[Sizes, ...]] = field(default_factory=dict)
    activations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: str = ""

    def __bool__(self) -> bool:
        return bool(self.of_suite)

    def knows(self, suite: str) -> bool:
        return suite in self.of_suite or "" in self.of_suite

    def of(self, suite: str) -> tuple[Sizes, ...]:
        """Raises ShapesError where there are shapes, but none for this suite."""
        found = self.of_suite.get(suite) or self.of_suite.get("", ())
        if self and not found:
            known = ", ".join(self.of_suite)
            raise ShapesError(f"{self.source} has no shapes for suite {suite}; it has {known}")
        return found


def from_text(text: str) -> Shapes:
    return Shapes({"": shapes_of_text(text)}, source=text)


def from_file(path: Path, tokens: int) -> Shapes:
    """Reads a .csv, a .json of shapes, or a Hugging Face config.json.

    A CSV has a column for each size and may have one named suite. A JSON is a list of shapes,
    [M, N, K] or "MxNxK", or an object of such lists by suite; one that has a hidden_size, or
    another name for it, is the config of a model, whose layers see `tokens` rows.

    Raises:
        ShapesError: The file does not exist or holds something else.
    """
    try:
        text = path.read_text()
        if path.suffix == ".csv":
            return Shapes(_from_csv(text), source=path.name)
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise ShapesError(f"--shapes {path}: {error}") from None
    if isinstance(found, dict) and _first({**found, **_text_config(found)}, WIDTH):
        return _from_config({**found, **_text_config(found)}, tokens, path.name)
    by_suite = found if isinstance(found, dict) else {"": found}
    unknown = sorted({*by_suite} - {*SUITES, ""})
    if unknown:
        raise ShapesError(
            f"--shapes {path}: expected a list of shapes, lists by suite, or a model's config with "
            f"one of {', '.join(WIDTH)}; got {', '.join(unknown)}"
        )
    return Shapes({s: _listed(path, v) for s, v in by_suite.items()}, source=path.name)


def _listed(path: Path, found: Any) -> tuple[Sizes, ...]:
    """A list of [M, N, K] or "MxNxK"."""
    words = ["x".join(map(str, s)) if isinstance(s, list) else s for s in _as_list(found)]
    sizes = [s.split("x") if isinstance(s, str) else [""] for s in words]
    if not sizes or not all(size.isdecimal() for shape in sizes for size in shape):
        raise ShapesError(
            f"--shapes {path}: expected shapes such as [8192, 4096, 1024]; got {found}"
        )
    return tuple(tuple(int(size) for size in shape) for shape in sizes)


def _as_list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _from_csv(text: str) -> dict[str, tuple[Sizes, ...]]:
    by_suite: dict[str, tuple[Sizes, ...]] = {}
    rows = list(csv.DictReader(text.splitlines()))
    for row in rows:
        suite = row.pop("suite", "") or ""
        sizes = [cell for cell in row.values() if cell]
        if not sizes or not all(cell.strip().isdecimal() for cell in sizes):
            raise ValueError(f"expected a column for each size, and whole numbers; got {row}")
        if suite not in (*SUITES, ""):
            raise ValueError(f"no suite {suite}; choose from {', '.join(SUITES)}")
        by_suite[suite] = (*by_suite.get(suite, ()), tuple(int(cell) for cell in sizes))
    if not rows:
        raise ValueError("expected a line of names and a line for each shape; got none")
    return by_suite


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part that reads text, of a model of several kinds of input."""
    found = config.get("text_config")
    return found if isinstance(found, dict) else {}


def _first(config: dict[str, Any], keys: Iterable[str]) -> int:
    values = (config.get(key) for key in keys)
    return next((v for v in values if type(v) is int and v > 0), 0)


def _activation(config: dict[str, Any]) -> tuple[str, bool, bool]:
    """(activation, gated, packed) of the MLP. silu means a gate: no plain MLP of note has it."""
    kind = str(config.get("model_type", ""))
    given = next((str(config[key]) for key in ACTIVATION if config.get(key)), "gelu")
    name = NAMES.get(given, "gelu")
    packed = kind.startswith(PACKED_MODELS)
    gated = bool(config.get("is_gated_act")) or packed or kind.startswith(GATED_MODELS)
    return name, (gated or name == "silu") and name in GATED, packed


def _from_config(config: dict[str, Any], tokens: int, source: str) -> Shapes:
    """The products, MLP, norms, rotation, embedding and loss of one layer and its head."""
    width, heads = _first(config, WIDTH), _first(config, HEADS)
    hidden = _first(config, HIDDEN) or 4 * width
    vocabulary = _first(config, ("vocab_size",))
    name, gated, packed = _activation(config)
    rows, experts = tokens, _first(config, EXPERTS)
    if experts:  # each sees its share
        hidden = _first(config, ("moe_intermediate_size",)) or hidden
        rows = max(1, tokens * (_first(config, ("num_experts_per_tok",)) or 1) // experts)
    products = [(rows, hidden, width), (rows, width, hidden)]
    by_suite: dict[str, tuple[Sizes, ...]] = {}
    if heads:
        head = _first(config, HEAD_WIDTH) or width // heads
        keys = _first(config, KV_HEADS) or heads
        products += [(tokens, heads * head, width), (tokens, keys * head, width)]
        products += [(tokens, width, heads * head)]
        by_suite["rope"] = ((tokens, heads, head),)
    if vocabulary:
        products += [(tokens, vocabulary, width)]
        by_suite["loss"] = ((tokens, width, vocabulary),)
        by_suite["embedding"] = ((tokens, vocabulary, width),)
    by_suite |= dict.fromkeys(GEMMS, tuple(dict.fromkeys(products)))
    by_suite |= {"mlp": ((rows, width, hidden),), "norm": ((tokens, width),)}
    of_mlp = (GATED[name] + ("_packed" if packed else "")) if gated else name
    activations = {"linear": ("none",), "host": ("none",), "fp32": ("none",), "mlp": (of_mlp,)}
    return Shapes(by_suite, activations, source)
