"""MLPs that a method runs layer by layer among other things: found in its source.

Statements in a row that compute ``down(act(up(x)))`` or ``down(act(gate(x)) * up(x))`` and whose
intermediate values nothing else reads: OPT's and Whisper's in the middle of a layer, T5's with a
cast in between, BERT's in two modules, GPT-2's of Conv1D. `fused_methods` writes a method anew with
``if ready: one op; else: the same statements``, so that what was not foreseen runs as it did.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn as torch_nn

from ..nn.linear import Linear, untouched
from .activations import FUNCTIONS, activation_of, read_function
from .dropping import Dropped
from .forward_code import module_of
from .leaf import FusedLeaf
from .source import is_ordinary, outer_names, tree_of

Path = tuple[str, ...]  # names of children


class Term(NamedTuple):
    """What an expression computes of the first layers' input."""

    kind: str  # "linear", "act", "mul", "chunk", "half", "mlp", "gated_mlp"
    args: tuple[Any, ...]
    input: str  # the source of the first layers' input


@dataclass(frozen=True)
class Chain:
    """One MLP in a method: what runs as one op, and what has to hold for it."""

    method: str
    lines: tuple[int, int]  # of the first statement and behind the last: its place in its list
    body: tuple[Any, ...]  # which list of statements, as steps from the function's tree
    first: tuple[Path, ...]  # one, or gate and up
    down: Path
    activation: str
    gated: bool
    up_first: bool
    dropouts: tuple[Dropped, ...]
    through: tuple[Path, ...]  # modules around these layers
    acts: tuple[Path, ...]  # the activation's modules
    tail: Path = ()  # a module whose forward begins with the down projection

    @property
    def kind(self) -> str:
        """For reports."""
        return "gated_mlp" if self.gated else "mlp"

    @property
    def may_drop(self) -> bool:
        """Whether the layers can run with dropouts that drop, activation and product as one."""
        places = {"mul" if self.gated else "act"} | (set() if self.tail else {self.kind})
        known = all(d.of in places for d in self.dropouts)
        return known and len(set(self.dropouts)) == len(self.dropouts)

    @property
    def layers(self) -> tuple[str, ...]:
        """The paths of the linear layers."""
        return tuple(".".join(path) for path in (*self.first, self.down))


def product_form(module: Any) -> str | None:
    """How a fused module is a linear layer: "linear", "matmul" (weight (in, out)) or None."""
    if type(module) is Linear:
        return "linear" if module.activation in (None, "none") else None
    if isinstance(module, FusedLeaf) and module._fused is not None:
        kind = module._fused.form.kind
        return kind if kind in ("linear", "matmul") else None
    return None


def base_of(module: Any) -> Any:
    """A module's class before it was fused."""
    return vars(type(module)).get("_base", type(module))


def child(module: Any, path: Path) -> Any:
    """The module of a path, None where there is none."""
    for name in path:
        if module is None:
            return None
        module = module._modules.get(name)
    return module


class _Evaluator:
    """Terms of the expressions of one function of a module."""

    def __init__(
        self, root: Any, path: Path, function: FunctionType, tree: ast.FunctionDef
    ) -> None:
        self.root, self.path, self.function = root, path, function
        self.module = child(root, path)
        arguments = [*tree.args.posonlyargs, *tree.args.args]
        self.me = arguments[0].arg if arguments else ""
        self.env: dict[str, Term] = {}
        self.outer = outer_names(function)
        self.dropouts: list[Dropped] = []
        self.through: list[Path] = []
        self.acts: list[Path] = []
        self.tail: Path = ()
        # Names outside and attributes of modules: (owner or the module's path, name, value)
        self.notes: list[tuple[Any, str, Any]] = []

    def __call__(self, node: ast.expr) -> Term | None:
        if isinstance(node, ast.Name):
            return self.env.get(node.id)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return self.product(self(node.left), self(node.right))
        if isinstance(node, ast.Call):
            return self.call(node)
        return None

    def product(self, one: Term | None, two: Term | None) -> Term | None:
        if one is None or two is None or one.input != two.input:
            return None
        for gate, up in ((one, two), (two, one)):
            if gate.kind == "act" and up.kind in ("linear", "half"):
                return Term("mul", (gate, up), one.input)
        return None

    def resolve(self, node: ast.expr) -> Any:
        """The object that a name outside, or an attribute of a module there, stands for."""
        if isinstance(node, ast.Name):
            code = self.function.__code__
            if node.id in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
                return None  # an argument, or a variable that may change
            value = self.outer.get(node.id)
            if value is not None:
                self.notes.append((module_of(self.function), node.id, value))
            return value
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            value = getattr(owner, node.attr, None) if type(owner) is type(torch) else None
            if value is not None:
                self.notes.append((owner, node.attr, value))
            return value
        return None

    def own(self, node: ast.expr) -> str | None:
        """The name, where a node reads an attribute of the module."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.attr if node.value.id == self.me else None
        return None

    def is_setting(self, node: ast.expr) -> bool:
        """Whether a node is a number or an attribute of the module, at any depth."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id == self.me)

    def call(self, node: ast.Call) -> Term | None:
        name = self.own(node.func)
        if name is None:
            return self.function_call(node)
        if name not in self.module._modules:
            value = vars(self.module).get(name)
            if len(node.args) == 1 and not node.keywords and _named(value):
                self.notes.append((self.path, name, value))
                return self.activated(FUNCTIONS[value], self(node.args[0]))
            return None
        if node.keywords or not node.args:
            return None
        return self.module_call(name, node)

    def module_call(self, name: str, node: ast.Call) -> Term | None:
        path, module = (*self.path, name), self.module._modules[name]
        argument = node.args[0]
        if len(node.args) == 1 and product_form(module) is not None:
            if not untouched(module):
                return None
            term = self(argument)
            if term is None:
                return Term("linear", (path,), ast.unparse(argument))
            return self.down(path, term)
        if len(node.args) > 1:
            return self.with_tail(path, module, self(argument))
        if type(module) in (torch_nn.Dropout, torch_nn.Identity) and self.entered(module):
            return self.dropped(argument, module, Dropped(path))
        if not isinstance(module, torch_nn.Module) or not self.entered(module):
            return None
        if not module._modules and self(argument):
            activation = activation_of(module)
            if activation is not None:
                self.acts.append(path)
                return self.activated(activation, self(argument))
        return self.inner(path, module, argument)

    def dropped(self, argument: ast.expr, module: Any, one: Dropped) -> Term | None:
        term = self(argument)
        if type(module) is not torch_nn.Identity:
            self.dropouts.append(replace(one, of="" if term is None else term.kind))
        return term

    def activated(self, activation: str, term: Term | None) -> Term | None:
        if term is None or term.kind not in ("linear", "half"):
            return None
        return Term("act", (activation, term), term.input)

    def down(self, path: Path, term: Term) -> Term | None:
        """The term of a linear layer on another one."""
        if term.kind == "act" and term.args[1].kind == "linear":
            return Term("mlp", (term.args[1].args, path, term.args[0]), term.input)
        if term.kind != "mul":
            return None
        gate, up = term.args
        activation, first = gate.args
        if (
            first.kind == up.kind == "linear"
            and first.args != up.args
            and term.input.isidentifier()
        ):
            both = (*first.args, *up.args)
            return Term("gated_mlp", (both, path, activation), term.input)
        return None

    def with_tail(self, path: Path, module: Any, term: Term | None) -> Term | None:
        """A module whose forward begins with the down projection: BERT's output."""
        first = first_layer(module) if term is not None else None
        if first is None or term is None or not self.entered(module):
            return None
        self.tail = path
        self.through.append(path)
        return self.down((*path, first), term)

    def entered(self, module: Any) -> bool:
        """Whether a call of a module runs its class's forward and nothing else."""
        return is_ordinary(module) and untouched(module)

    def inner(self, path: Path, module: Any, argument: ast.expr) -> Term | None:
        """The term of a module of layers: BERT's intermediate."""
        if not 0 < len(module._modules) < 5 or len(path) > 3:
            return None
        if isinstance(module, torch_nn.Sequential):
            return None
        function: Any = base_of(module).forward
        tree = tree_of(function) if type(function) is FunctionType else None
        if tree is None or len(tree.args.args) != 2 or tree.args.vararg or tree.args.kwarg:
            return None
        inside = _Evaluator(self.root, path, function, tree)
        given, name = self(argument), tree.args.args[1].arg
        if given is not None:
            inside.env[name] = given
        term = None
        for statement in tree.body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                term = inside(statement.value)
                break
            if not inside.assign(statement):
                return None
        if given is None and term is not None and term.kind in ("mlp", "gated_mlp"):
            return None  # it is one of its own
        if term is None or inside.tail or (given is None and term.input != name):
            return None
        if given is None and inside.reassigned(tree, name, term):
            return None
        self.dropouts += inside.dropouts
        self.through += [path, *inside.through]
        self.acts += inside.acts
        self.notes += [*inside.notes, (base_of(module), "forward", function)]
        return _with_input(term, given.input if given is not None else ast.unparse(argument))

    def reassigned(self, tree: ast.FunctionDef, name: str, term: Term) -> bool:
        """Whether a gate and an up projection may read different values of the input's name."""
        stores = sum(
            isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
            for n in ast.walk(tree)
        )
        return stores > 0 and term.kind in ("mul", "gated_mlp")

    def assign(self, statement: ast.stmt) -> bool:
        """Follow a statement; whether it is one that chains are made of."""
        if isinstance(statement, ast.If):
            return self.is_cast(statement)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return True
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        target = statement.targets[0]
        if not isinstance(target, ast.Name):
            return False
        term = self(statement.value)
        if term is None:
            return False
        self.env = {k: t for k, t in self.env.items() if t.input != target.id}
        self.env[target.id] = term
        return True

    def is_cast(self, statement: ast.If) -> bool:
        """T5's ``if ...: h = h.to(self.wo.weight.dtype)``: nothing where dtypes are alike."""
        if statement.orelse or len(statement.body) != 1:
            return False
        inner = statement.body[0]
        if not isinstance(inner, ast.Assign) or len(inner.targets) != 1:
            return False
        target, value = inner.targets[0], inner.value
        if not (isinstance(target, ast.Name) and target.id in self.env):
            return False
        if not isinstance(value, ast.Call) or value.keywords or len(value.args) != 1:
            return False
        if ast.unparse(value.func) != f"{target.id}.to":
            return False
        words = ast.unparse(value.args[0]).split(".")
        if len(words) != 4 or words[0] != self.me or words[2:] != ["weight", "dtype"]:
            return False
        if product_form(self.module._modules.get(words[1])) is None:
            return False
        allowed = (ast.BoolOp, ast.Compare, ast.Attribute, ast.Name, ast.expr_context, ast.boolop,
                   ast.cmpop)  # fmt: skip
        for node in ast.walk(statement.test):
            if isinstance(node, ast.Call):
                if not isinstance(node.func, ast.Name) or node.func.id != "isinstance":
                    return False
            elif not isinstance(node, allowed):
                return False
        return True

    def function_call(self, node: ast.Call) -> Term | None:
        function = self.resolve(node.func)
        if function is F.dropout and node.args and not self.path:
            keywords = dict(zip(("p", "training"), node.args[1:], strict=False))
            keywords |= {str(k.arg): k.value for k in node.keywords}
            if not set(keywords) <= {"p", "training"} or "training" not in keywords:
                return None
            if not all(self.is_setting(value) for value in keywords.values()):
                return None
            p = ast.unparse(keywords["p"]) if "p" in keywords else "0.5"
            one = Dropped((), p, ast.unparse(keywords["training"]))
            return self.dropped(node.args[0], None, one)
        if len(node.args) != 1:
            return None
        if function is F.gelu:
            keywords = {str(k.arg): k.value for k in node.keywords}
            way = keywords.pop("approximate", ast.Constant("none"))
            if keywords or not isinstance(way, ast.Constant):
                return None
            name = {"none": "gelu", "tanh": "gelu_tanh"}.get(str(way.value))
            return self.activated(name, self(node.args[0])) if name else None
        if node.keywords:
            return None
        if _named(function):
            return self.activated(FUNCTIONS[function], self(node.args[0]))
        term = self(node.args[0])
        read = (
            None if term is None or type(function) is not FunctionType else read_function(function)
        )
        if read is None:
            return None
        self.notes += read[1].entries
        return self.activated(read[0], term)


def _named(function: Any) -> bool:
    return getattr(function, "__hash__", None) is not None and function in FUNCTIONS


def _with_input(term: Term, source: str) -> Term:
    args = tuple(_with_input(a, source) if isinstance(a, Term) else a for a in term.args)
    return Term(term.kind, args, source)


def first_layer(module: Any) -> str | None:
    """The name of the linear layer that a module's forward puts its first argument through."""
    function: Any = base_of(module).forward
    tree = tree_of(function) if type(function) is FunctionType else None
    if tree is None or len(tree.args.args) < 3 or function.__code__.co_freevars:
        return None
    me, x = (argument.arg for argument in tree.args.args[:2])
    body = without_docstring(tree.body)
    for name, layer in module._modules.items():
        is_first = bool(body) and ast.unparse(body[0]) == f"{x} = {me}.{name}({x})"
        if is_first and product_form(layer) is not None:
            return str(name)
    return None


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements behind a docstring."""
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return body[1:]
    return body


def _lists(node: ast.AST, steps: tuple[Any, ...] = ()) -> Any:
    """The lists of statements in a function, with the steps to each."""
    for name in ("body", "orelse", "finalbody"):
        inner = getattr(node, name, None)
        if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
            yield (*steps, name), inner
            for index, statement in enumerate(inner):
                if not isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                    yield from _lists(statement, (*steps, name, index))


def chains_of(root: Any, name: str, function: FunctionType, tree: ast.FunctionDef) -> list[Any]:
    """The MLPs in a method of a module: (chain, names outside that it refers to)."""
    found: list[Any] = []
    for steps, body in _lists(tree):
        start = 0
        while start < len(body):
            got = _chain_at(root, name, function, tree, steps, body, start)
            if got is None:
                start += 1
            else:
                found.append(got)
                start = got[0].lines[1]
    return found


def _chain_at(
    root: Any,
    name: str,
    function: FunctionType,
    tree: ast.FunctionDef,
    steps: tuple[Any, ...],
    body: list[ast.stmt],
    start: int,
) -> Any:
    evaluate = _Evaluator(root, (), function, tree)
    if not evaluate.me:
        return None
    for index in range(start, len(body)):
        statement = body[index]
        value = statement.value if isinstance(statement, (ast.Assign, ast.Return)) else None
        if isinstance(statement, ast.Return) and value is not None:
            term, target = evaluate(value), ""
        elif evaluate.assign(statement) and isinstance(statement, ast.Assign):
            target = statement.targets[0].id  # type: ignore[attr-defined]
            term = evaluate.env.get(target)
        elif isinstance(statement, ast.If) and index > start:
            continue
        else:
            return None
        if term is not None and term.kind in ("mlp", "gated_mlp"):
            return _chain(evaluate, name, tree, steps, body, (start, index + 1), term, target)
        if term is None:
            return None
    return None


def _chain(
    evaluate: _Evaluator,
    name: str,
    tree: ast.FunctionDef,
    steps: tuple[Any, ...],
    body: list[ast.stmt],
    lines: tuple[int, int],
    term: Term,
    target: str,
) -> Any:
    """The chain of statements, where nothing else reads what they store."""
    inside = body[lines[0] : lines[1]]
    stored = {t.id for s in inside if isinstance(s, ast.Assign) for t in s.targets
              if isinstance(t, ast.Name)} - {target}  # fmt: skip
    within = {id(n) for statement in inside for n in ast.walk(statement)}
    for node in ast.walk(tree):
        read = isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)
        if not read or id(node) in within or node.id not in stored:  # type: ignore[attr-defined]
            continue
        if not _stored_before(node, tree, body, lines):  # type: ignore[arg-type]
            return None
    first, down, activation = term.args
    # NOTE: the tail's forward goes on behind the down projection, with its dropout and norm.
    chain = Chain(
        name, lines, steps, tuple(first), down, activation, term.kind == "gated_mlp", False,
        tuple(evaluate.dropouts), tuple(evaluate.through), tuple(evaluate.acts), evaluate.tail,
    )  # fmt: skip
    paths = [*chain.first, chain.down]
    if len(set(paths)) != len(paths) or any("." in path for p in paths for path in p):
        return None
    return chain, evaluate.notes, term.input


def _stored_before(
    node: ast.Name, tree: ast.FunctionDef, body: list[ast.stmt], lines: tuple[int, int]
) -> bool:
    """Whether a name is read before the chain, in straight code: its value is another one."""
    bent = (ast.For, ast.While, ast.Lambda, ast.FunctionDef, ast.GeneratorExp)
    loops = any(isinstance(n, bent) and n is not tree for n in ast.walk(tree))
    return not loops and node.lineno < body[lines[0]].lineno
