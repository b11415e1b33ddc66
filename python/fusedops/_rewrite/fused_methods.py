"""Methods written anew with their MLPs as one op, in a class of the module's own."""

from __future__ import annotations

import ast
import copy
import functools
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn as torch_nn

from .._autograd.compose import activate
from .._core.activation import activation_code
from ..nn.linear import parameters_of, untouched
from ..ops.mlp import gated_mlp, mlp
from .activations import read_activation
from .chains import Chain, Path, base_of, chains_of, child, product_form, without_docstring
from .dropping import dropped, dropping_mlp, drops
from .forward_code import Outside, same_constant
from .fused_class import Fused, derived
from .leaf import FusedLeaf
from .pairs import add_norm, is_fused_norm, write_pairs
from .recompile import asks_class, compiled, is_plain, rewrapped, unwrapped
from .source import is_ordinary, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_TORCHS = (torch_nn.TransformerEncoderLayer, torch_nn.TransformerDecoderLayer)  # made of layers


# ---- writing ----


def _at(tree: ast.FunctionDef, steps: tuple[Any, ...]) -> list[ast.stmt]:
    node: Any = tree
    for step in steps:
        node = node[step] if isinstance(step, int) else getattr(node, step)
    return node  # type: ignore[no-any-return]


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _with_op(tree: ast.FunctionDef, chain: Chain, index: int, source: str) -> None:
    """Put the op before a chain's statements."""
    me = (*tree.args.posonlyargs, *tree.args.args)[0].arg
    body = _at(tree, chain.body)
    start, end = chain.lines
    last: Any = body[end - 1]
    rates = [text for d in chain.dropouts if not d.path for text in (d.p, d.training)]
    ready = _expression(f"{me}._fused_ready({', '.join([str(index), *rates])})")
    value = _expression(f"{me}._fused_run({', '.join([str(index), source, *rates])})")
    if chain.tail:
        call = next(
            n for n in ast.walk(last.value)
            if isinstance(n, ast.Call) and ast.unparse(n.func) == f"{me}.{'.'.join(chain.tail)}"
        )  # fmt: skip
        rest = _expression(f"{me}.{'.'.join(chain.tail)}._fused_rest(None)")
        assert isinstance(rest, ast.Call)
        rest.args = [value, *copy.deepcopy(call.args[1:])]
        value = rest
    one: ast.stmt = (
        ast.Return(value) if isinstance(last, ast.Return)
        else ast.Assign(copy.deepcopy(last.targets), value)
    )  # fmt: skip
    choice = ast.If(ready, [one], body[start:end])
    for node in (choice, *ast.walk(ready), *ast.walk(one)):
        ast.copy_location(node, body[start])
    body[start:end] = [choice]


def _guarded(name: str, original: Any, new: Any) -> Any:
    """A method that is the new one while a class still has the original."""

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], Fused):  # called as a function of its class
            return original(*args, **kwargs)
        kind: Any = args[0]
        now = getattr(kind._base, name)
        return (new if now is original else now)(*args, **kwargs)

    return method


# ---- the class ----


Pairs = tuple[tuple[str, tuple[str, ...]], ...]  # (method, norms that stand behind sums in it)


class Found(NamedTuple):
    """A chain of a module and the source of its input."""

    chain: Chain
    input: str


class Kept(NamedTuple):
    """What a module's chains were found with."""

    found: tuple[Found, ...]
    pairs: Pairs
    kinds: tuple[tuple[Path, type], ...]  # modules inside, and what they were
    flags: tuple[tuple[Path, str, Any], ...]  # (module, name, value)
    shadows: tuple[tuple[Path, str], ...]  # (module, method)
    outside: Outside | None

    def __deepcopy__(self, memo: Any) -> Kept:
        return self._replace(flags=copy.deepcopy(self.flags, memo))

    def __reduce__(self) -> Any:
        return _unread, ()  # where it is loaded, the code may be another one


def _unread() -> Kept:
    return Kept((), (), (), (), (), None)


_classes: dict[Any, type] = {}


def _methods(base: type, found: tuple[Found, ...], pairs: Pairs) -> dict[str, Any] | None:
    """The methods of a class written anew."""
    made = {}
    for name in dict.fromkeys([*(f.chain.method for f in found), *(name for name, _ in pairs)]):
        layers = unwrapped(getattr(base, name))
        tree = copy.deepcopy(tree_of(layers[-1]))
        assert tree is not None
        chosen = [(i, f) for i, f in enumerate(found) if f.chain.method == name]
        write_pairs(tree, dict(pairs).get(name, ()), _lines_of(tree, [f for _, f in chosen]))
        for index, one in sorted(chosen, key=lambda c: (c[1].chain.body, c[1].chain.lines),
                                 reverse=True):  # fmt: skip
            _with_op(tree, one.chain, index, one.input)
        method = _rewritten(base, name, tree)
        if method is None:
            return None
        made[name] = method
    return made


def _rewritten(base: Any, name: str, tree: ast.FunctionDef) -> Any:
    """The method of a class compiled from another tree, and guarded; None where it cannot be."""
    layers = unwrapped(getattr(base, name))
    new = compiled(layers[-1], tree)
    method = None if new is None else rewrapped(layers, new)
    return None if method is None else _guarded(name, layers[0], method)


def rewritten_methods(base: Any, trees: dict[str, ast.FunctionDef]) -> dict[str, Any] | None:
    """Methods of a class compiled from other trees, and guarded; None where one cannot be."""
    made = {name: _rewritten(base, name, tree) for name, tree in trees.items()}
    return None if None in made.values() else made


def _lines_of(tree: ast.FunctionDef, found: list[Found]) -> set[int]:
    """The lines of a function that its chains stand in."""
    lines: set[int] = set()
    for one in found:
        inside = _at(tree, one.chain.body)[one.chain.lines[0] : one.chain.lines[1]]
        lines.update(*(range(s.lineno, (s.end_lineno or s.lineno) + 1) for s in inside))
    return lines


def chain_class(base: type, found: tuple[Found, ...], pairs: Pairs) -> type | None:
    """The class of modules of a class with these chains and pairs."""
    key = (base, found, pairs)
    if key not in _classes:
        methods = _methods(base, found, pairs)
        if methods is None:
            return None
        methods["_fused_rest"] = _rest(base, dict(pairs).get("forward", ()))
        _classes[key] = derived(FusedMethods, base, **methods)
    return _classes[key]


def _rest(base: Any, norms: Any) -> FunctionType | None:
    """A forward that goes on behind its first statement; None where its source is not known."""
    function = base.forward
    tree = copy.deepcopy(tree_of(function)) if type(function) is FunctionType else None
    if tree is None or not tree.args.args or not is_plain(tree):
        return None
    tree.body = without_docstring(tree.body)[1:] or [ast.Pass()]
    write_pairs(tree, norms, set())
    return compiled(function, tree)


def _rest_class(base: type) -> type | None:
    """The class of a module whose forward can also go on behind its first layer."""
    key = (base, "rest")
    if key not in _classes:
        rest = _rest(base, ())
        if rest is None:
            return None
        _classes[key] = derived(FusedRest, base, _fused_rest=rest)
    return _classes[key]


class FusedRest(Fused):
    """Mixed into the class of a module whose first layer may run with what is before it."""

    _fused_rest: Any
    _base: Any

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self.__class__ = _rest_class(self._base) or self._base


class FusedMethods(Fused):
    """Mixed into the class of a module with MLPs in its methods."""

    _fused_chains: Kept | None = None
    _base: Any

    def _fused_add_norm(self, name: str, a: Any, b: Any) -> tuple[Any, Any]:
        return add_norm(getattr(self, name), a, b)

    def _fused_ready(self, index: int, *rates: Any) -> bool:
        """Whether the op computes what the chain's statements would."""
        kept = self._fused_chains
        if kept is None or kept.outside is None or _is_dynamo_compiling():
            return False
        chain = kept.found[index].chain
        dtype = None
        for path in (*chain.first, chain.down):
            layer = child(self, path)
            if not isinstance(layer, torch_nn.Module) or not untouched(layer):
                return False
            weight = _product_weight(layer)
            if weight is None or (dtype is not None and weight.dtype is not dtype):
                return False
            dtype = weight.dtype
        dropping = any(rates[i] > 0 and rates[i + 1] for i in range(0, len(rates), 2))
        for one in chain.dropouts:
            if one.path:
                module = child(self, one.path)
                if type(module) is not torch_nn.Dropout or not untouched(module):
                    return False
                dropping = dropping or drops(module)
        return (not dropping or chain.may_drop) and self._fused_is_same(kept, chain)

    def _fused_is_same(self, kept: Kept, chain: Chain) -> bool:
        for paths in (chain.through, chain.acts):
            for path in paths:
                module: Any = child(self, path)
                if not isinstance(module, torch_nn.Module) or not untouched(module):
                    return False
        for path, kind in kept.kinds:
            if type(child(self, path)) is not kind:
                return False
        for path, name, value in kept.flags:
            now = getattr(child(self, path), name, None)
            if now is not value and not same_constant(now, value):
                return False
        for path, name in kept.shadows:
            if name in vars(child(self, path)):
                return False
        return kept.outside is not None and kept.outside.is_same()

    def _fused_drops(self, chain: Chain, rates: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        """The dropouts that drop, before the last layer and behind it."""
        found: tuple[list[Any], list[Any]] = [], []
        given = iter(rates)
        for one in chain.dropouts:
            if one.path:
                module = child(self, one.path)
                if drops(module):
                    found[one.is_last].append(module)
                continue
            p, training = next(given), next(given)
            if training and p > 0:
                found[one.is_last].append(functools.partial(F.dropout, p=p))
        return found

    def _fused_run(self, index: int, x: Any, *rates: Any) -> Any:
        """The chain, as one op, or by its layers where something drops between them."""
        chain = self._fused_chains.found[index].chain  # type: ignore[union-attr]
        layers = [child(self, path) for path in (*chain.first, chain.down)]
        recipe, *others = (getattr(layer, "recipe", None) for layer in layers)
        between, last = self._fused_drops(chain, rates) if chain.dropouts else ([], [])
        if any(other != recipe for other in others):
            hidden = activate(layers[0](x), activation_code(chain.activation))
            hidden = hidden * layers[1](x) if chain.gated else hidden
            return dropped(layers[-1](dropped(hidden, between)), last)
        *first, down = (_weight(layer) for layer in layers)
        if between:
            y = dropping_mlp(x, first, down, chain.activation, between, recipe)
        elif not chain.gated:
            y = mlp(x, *first[0], *down, chain.activation, recipe=recipe)
        else:
            (wg, bg), (wu, bu), (wd, bd) = *first, down
            y = gated_mlp(x, wg, wu, wd, bg, bu, bd, chain.activation, recipe=recipe)
        return dropped(y, last) if last else y

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        kept, self.__class__ = self._fused_chains, self._base
        if kept is not None and kept.outside is not None:
            self.__class__ = chain_class(type(self), kept.found, kept.pairs) or type(self)
        elif kept is not None:  # from a pickle: the code may be another one here
            del self._fused_chains
            fuse_methods(self)


def _product_weight(layer: Any) -> Any:
    """The weight of a layer that is still the product it was found to be, else None."""
    parameters = layer._parameters
    for parameter in parameters.values():
        if parameter is not None and type(parameter) is not torch_nn.Parameter:
            return None
    if type(layer) is torch_nn.Linear:
        name = "weight"
    elif product_form(layer) is None:
        return None
    elif not isinstance(layer, FusedLeaf):
        name = "weight"
    else:
        leaf: Any = layer._fused
        if not leaf.is_same(layer):
            return None
        name = leaf.form.weight
    # NOTE: torch.fx hands out proxies for attributes, whose dtypes are unlike: no op runs then.
    return None if parameters.get(name) is None else getattr(layer, name)


def _weight(layer: Any) -> tuple[Any, Any]:
    if isinstance(layer, FusedLeaf):
        form = layer._fused.form  # type: ignore[union-attr]
        weight = getattr(layer, form.weight)  # type: ignore[arg-type]
        bias = None if form.bias is None else getattr(layer, form.bias)
        return (weight.t() if form.kind == "matmul" else weight), bias
    return parameters_of(layer)


def _own_methods(kind: type) -> Iterator[tuple[str, Any]]:
    """The methods that a module's class has of its own or from another one that is not torch's."""
    seen = set()
    for base in kind.__mro__:
        theirs = base.__module__.split(".")[0] == "torch" and base not in _TORCHS
        if theirs or base is object:
            continue
        for name, value in vars(base).items():
            if name not in seen and not name.startswith("__") and type(value) is FunctionType:
                yield name, value
            seen.add(name)


def _has_layers(module: Any, depth: int = 0) -> bool:
    return any(
        product_form(m) is not None or (depth < 2 and _has_layers(m, depth + 1))
        for m in module._modules.values()
        if m is not None
    )


def fuse_methods(module: torch_nn.Module) -> Kept | None:
    """Make MLPs, and sums with norms behind, in a module's methods run as one op each, in place.

    Returns:
        What was found; None where nothing was.
    """
    kind = type(module)
    special = (torch_nn.Sequential, torch_nn.ModuleList, Fused)
    theirs = kind.__module__.startswith("torch.nn.") and kind not in _TORCHS
    if isinstance(module, special) or theirs:
        return None
    if not is_ordinary(module, call=False) or not _has_layers(module):
        return None
    found: list[Found] = []
    notes: list[Any] = []
    pairs: list[tuple[str, tuple[str, ...]]] = []
    norms = tuple(name for name, m in module._modules.items() if is_fused_norm(m))
    for name, value in _own_methods(kind):
        function = unwrapped(value)[-1]
        if type(function) is not FunctionType or name in vars(module):
            continue
        tree = tree_of(function)
        if tree is not None and asks_class(tree):
            return None
        if tree is None or not is_plain(tree):
            continue
        for chain, names, source in chains_of(module, name, function, tree):
            found.append(Found(chain, source))
            notes += names
        taken = _lines_of(tree, [one for one in found if one.chain.method == name])
        paired = write_pairs(copy.deepcopy(tree), norms, taken) if norms else ()
        if paired:
            pairs.append((name, paired))
    if not (found or pairs) or not _ready_tails(module, found):
        return None
    kept = _kept(module, tuple(found), tuple(pairs), notes)
    new = chain_class(kind, kept.found, kept.pairs)
    if new is None:
        return None
    vars(module)["_fused_chains"] = kept
    module.__class__ = new
    return kept


def _ready_tails(module: Any, found: list[Found]) -> bool:
    """Give the tails of chains a class that has the rest of their forward."""
    for one in found:
        if one.chain.tail:
            tail = child(module, one.chain.tail)
            if isinstance(tail, Fused):
                if getattr(tail, "_fused_rest", None) is None:
                    return False
                continue
            new = _rest_class(type(tail))
            if new is None:
                return False
            tail.__class__ = new
    return True


def _kept(module: Any, found: tuple[Found, ...], pairs: Pairs, notes: list[Any]) -> Kept:
    """What has to stay as it is for the chains to be what they are."""
    outside = Outside()
    kinds: dict[Path, type] = {}
    flags: dict[tuple[Path, str], Any] = {}
    shadows: dict[tuple[Path, str], None] = {}
    for owner, name, value in notes:
        if isinstance(owner, tuple):
            flags[owner, name] = value
        else:
            outside.add(owner, name, value)
    for one in found:
        for path in one.chain.acts:
            act = child(module, path)
            kinds[path] = type(act)
            outside.add_method(type(act), "forward")
            if "approximate" in vars(act):
                flags[path, "approximate"] = act.approximate
            read = read_activation(act)
            if read is not None:
                flags.update({(path, n): v for n, v in read[1].flags.items()})
                shadows.update({(path, n): None for n in read[1].methods})
                for owner, name, value in read[1].outside.entries:
                    outside.add(owner, name, value)
        for path in one.chain.through:
            inner = child(module, path)
            outside.add_method(base_of(inner), "forward")
            kinds[path] = type(inner)
    kept = tuple((*key, value) for key, value in flags.items())
    return Kept(found, pairs, tuple(kinds.items()), kept, tuple(shadows), outside)
