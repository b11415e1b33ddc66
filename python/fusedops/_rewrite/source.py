"""The source of functions, and whether what a leaf module's forward does is to compute and no more.

A source counts only where compiling it gives the function's own bytecode. What a forward reads
besides its arguments (attributes of its module, names outside) is collected, since it may change.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import math
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as torch_nn

from .forward_code import CONSTANTS, Outside, RefusedError, module_of
from .gated.table_entry import read_entry

_FIELDS = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars")


def _alike(one: CodeType, two: CodeType) -> bool:
    """Whether two code objects run the same instructions on the same constants."""
    if any(getattr(one, name) != getattr(two, name) for name in _FIELDS):
        return False
    if len(one.co_consts) != len(two.co_consts):
        return False
    for a, b in zip(one.co_consts, two.co_consts, strict=True):
        if type(a) is not type(b):
            return False
        if not (_alike(a, b) if isinstance(a, CodeType) else repr(a) == repr(b)):
            return False
    return True


def _codes(code: CodeType, found: dict[tuple[str, int], CodeType]) -> None:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            found[value.co_name, value.co_firstlineno] = value
            _codes(value, found)


_Index = dict[tuple[str, int], tuple[ast.FunctionDef, CodeType]]


@functools.lru_cache(maxsize=64)
def _functions_of(file: str) -> _Index:
    """The functions of a file by name and first line."""
    # NOTE: compiled as a whole; CPython compiles calls through imported names another way.
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
        whole = compile(tree, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return {}
    codes: dict[tuple[str, int], CodeType] = {}
    _codes(whole, codes)
    found: _Index = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            line = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if (node.name, line) in codes:
                found[node.name, line] = node, codes[node.name, line]
    return found


def tree_of(function: FunctionType) -> ast.FunctionDef | None:
    """A function's source; None where it is not known."""
    code = function.__code__
    found = _functions_of(code.co_filename).get((code.co_name, code.co_firstlineno))
    return found[0] if found is not None and _alike(found[1], code) else None


def is_ordinary(module: torch_nn.Module, call: bool = True) -> bool:
    """Whether a module is called, and its attributes are found, as those of any nn.Module."""
    kind, base = type(module), torch_nn.Module
    if kind.__getattr__ is not base.__getattr__ or (call and kind.__call__ is not base.__call__):
        return False
    return kind.__getattribute__ is base.__getattribute__


def outer_names(function: FunctionType) -> dict[str, Any]:
    """What a function's names stand for outside of it, builtins left out."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    names = dict(function.__globals__)
    filled = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
    return {**names, **filled}


# ---- what code may do that does nothing but compute ----

_TENSOR_ATTRIBUTES = {"dtype", "shape", "device", "ndim", "is_cuda", "T", "mT", "weight"}
_TENSOR_METHODS = {
    "to", "float", "double", "type", "type_as", "pow", "square", "mean", "var", "sqrt", "rsqrt",
    "sum", "view", "reshape", "size", "dim", "permute", "transpose", "contiguous", "unsqueeze",
    "squeeze", "mul", "add", "sub", "div", "neg", "exp", "abs", "tanh", "sigmoid", "erf", "relu",
    "clamp", "expand", "flatten", "movedim", "reciprocal", "matmul", "t", "numel", "half",
    "bfloat16", "is_floating_point", "is_contiguous", "view_as", "chunk", "split",
    "repeat_interleave", "unbind", "unflatten",
}  # fmt: skip
_TORCH = {
    torch.pow, torch.square, torch.mean, torch.var, torch.var_mean, torch.sqrt, torch.rsqrt,
    torch.sum, torch.add, torch.sub, torch.mul, torch.div, torch.neg, torch.exp, torch.abs,
    torch.tanh, torch.sigmoid, torch.erf, torch.relu, torch.clamp, torch.clip, torch.reciprocal,
    torch.matmul, torch.addmm, torch.mm, torch.rms_norm, torch.layer_norm, torch.finfo,
    torch.cat, torch.stack, torch.chunk, torch.repeat_interleave,
}  # fmt: skip
ACTIVATION_FORWARDS = {
    kind.forward
    for kind in (
        torch_nn.GELU, torch_nn.ReLU, torch_nn.SiLU, torch_nn.Tanh, torch_nn.Sigmoid,
        torch_nn.LeakyReLU, torch_nn.Hardswish, torch_nn.Mish, torch_nn.Softplus, torch_nn.ELU,
        torch_nn.ReLU6,
    )
}  # fmt: skip
_SETTINGS = (
    "weight", "bias", "eps", "normalized_shape", "approximate", "negative_slope", "beta",
    "threshold", "alpha", "min_val", "max_val",
)  # fmt: skip
_FUNCTIONS = {
    *_TORCH, F.layer_norm, F.rms_norm, F.linear, F.gelu, F.silu, F.relu, F.tanh, F.sigmoid,
    F.leaky_relu, F.hardswish, F.mish, F.softplus, F.elu, F.relu6, torch.jit.is_scripting,
    torch.jit.is_tracing, torch_nn.LayerNorm.forward, torch_nn.RMSNorm.forward,
    torch_nn.Linear.forward, *ACTIVATION_FORWARDS,
}  # fmt: skip
_BUILTINS = {len, int, float, isinstance, tuple, list, range}
# What may decide which branch runs: dtypes and dims, which are probed, and no values or devices.
_TESTED = ("dtype", "ndim", "weight")
_TESTS = ("isinstance", "dim", "is_floating_point", "is_tensor")
_VALUES = (*CONSTANTS, tuple, torch.Size, torch.dtype)
_EXPRESSIONS = (
    ast.Constant, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Tuple, ast.List, ast.Subscript, ast.Slice,
    ast.Starred, ast.keyword, ast.expr_context, ast.operator, ast.unaryop, ast.Name,
)  # fmt: skip
_DEPTH = 8


class Reader:
    """Reads the source of a leaf module's forward, and of what it calls.

    Attributes:
        flags: The plain attributes of the module that it reads, with their values.
        calls: The known functions and the tensor methods that it calls.
        arguments: The names of the arguments of all functions that it reads.
        numbers: All floating-point constants that it contains or reads.
        integers: The magnitudes of all integers that it contains or reads.
    """

    def __init__(self, module: torch_nn.Module, functions: frozenset[Any] = frozenset()) -> None:
        self.module = module
        self.functions = _FUNCTIONS | functions  # that it may call
        self.flags: dict[str, Any] = {}
        self.methods: set[str] = set()
        self.outside = Outside()
        self.calls: set[Any] = set()
        self.arguments: set[str] = set()
        self.numbers: set[float] = set()
        self.integers: set[int] = set()

    def read(self) -> None:
        """Read the forward.

        Raises:
            RefusedError: It may do more than to compute, or is not known.
        """
        if not is_ordinary(self.module):
            raise RefusedError("is called in a way of its own")
        self.outside.add_method(type(self.module), "forward")
        self._function(type(self.module).forward, self.module, type(self.module), 0)

    def read_function(self, function: Any) -> None:
        """Read a function that belongs to no module.

        Raises:
            RefusedError: As `read`.
        """
        self._function(function, None, None, 0)

    def _function(self, function: Any, owner: Any, kind: type | None, depth: int) -> None:
        """Read a function; owner is what its first argument is, None for a plain function."""
        if function in self.functions:
            self.calls.add(function)
            if owner is not None:
                for name in _SETTINGS:
                    self._attribute(name, missing_ok=True)
            return
        if type(function) is not FunctionType or depth > _DEPTH:
            raise RefusedError(f"calls {getattr(function, '__name__', function)!r}")
        tree = tree_of(function)
        if tree is None:
            raise RefusedError(f"the source of {function.__name__} is not known")
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            if not isinstance(default, _VALUES):
                raise RefusedError(f"{function.__name__} has a default of another kind")
            self.note(default)
        arguments = [a.arg for a in (*tree.args.posonlyargs, *tree.args.args)]
        self.arguments.update(arguments, (a.arg for a in tree.args.kwonlyargs))
        bound = owner is not None and arguments
        scope = _Scope(self, function, arguments[0] if bound else "", owner, kind, depth)
        scope.statements(tree.body)

    def _attribute(self, name: str, missing_ok: bool = False) -> Any:
        """An attribute of the module that is a parameter or a plain value."""
        if name in self.module._parameters:
            return self.module._parameters[name]
        if name == "training":
            raise RefusedError("depends on training")
        value = vars(self.module).get(name, getattr(type(self.module), name, _MISSING))
        if value is _MISSING:
            if missing_ok:
                return None
            raise RefusedError(f"reads {name}")
        if isinstance(value, _VALUES):
            self.flags[name] = value
            self.note(value)
        return value

    def note(self, value: Any) -> None:
        """Collect a constant, or those in a tuple."""
        if isinstance(value, float):
            self.numbers.add(value)
        elif isinstance(value, int):
            self.integers.add(abs(value))
        elif isinstance(value, tuple):
            for one in value:
                self.note(one)


_MISSING = object()
_UNKNOWN = object()


class _Scope:
    """One function's code in a Reader."""

    def __init__(
        self, reader: Reader, function: Any, me: str, owner: Any, kind: type | None, depth: int
    ) -> None:
        self.reader, self.function, self.me, self.owner = reader, function, me, owner
        self.kind, self.depth = kind, depth
        self.locals = set(function.__code__.co_varnames)
        self.outer = outer_names(function)

    def statements(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.If):
            if self.checks_size(node):
                return
            known = self.constant(node.test)
            if known is _UNKNOWN:
                self.test(node.test)
            if known is _UNKNOWN or known:
                self.statements(node.body)
            if known is _UNKNOWN or not known:
                self.statements(node.orelse)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                names = [n.value if isinstance(n, ast.Starred) else n for n in names]
                if not all(isinstance(name, ast.Name) and name.id != self.me for name in names):
                    raise RefusedError("stores more than local variables")
            if node.value is not None:
                self.expression(node.value)
        elif isinstance(node, (ast.Return, ast.Expr)):
            if node.value is not None:
                self.expression(node.value)
        elif not isinstance(node, ast.Pass):
            raise RefusedError(f"has a statement {type(node).__name__.lower()}")

    def checks_size(self, node: ast.If) -> bool:
        """Whether a branch raises for other sizes of the last dim, which are never fused."""
        test = node.test
        if node.orelse or len(node.body) != 1 or not isinstance(node.body[0], ast.Raise):
            return False
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.NotEq):
            return False
        own = isinstance(test.comparators[0], ast.Attribute)
        size = ast.unparse(test.left).endswith((".size(-1)", ".shape[-1]"))
        return own and size and self._is_me(test.comparators[0].value)  # type: ignore[attr-defined]

    def constant(self, node: ast.expr) -> Any:
        """Whether a test holds, where plain attributes of the module alone decide."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self.constant(node.operand)
            return value if value is _UNKNOWN else not value
        if isinstance(node, ast.Attribute) and self._is_me(node.value):
            value = self.reader._attribute(node.attr)
            return value if isinstance(value, CONSTANTS) else _UNKNOWN
        if isinstance(node, ast.Call) and self.global_of(node.func) is torch.jit.is_scripting:
            return False
        return _UNKNOWN

    def test(self, node: ast.expr) -> None:
        """Read what decides a branch: nothing that probe values could miss."""
        if self.constant(node) is not _UNKNOWN:
            return
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self.test(value)
        elif isinstance(node, ast.UnaryOp):
            self.test(node.operand)
        elif isinstance(node, ast.Compare):
            parts = (node.left, *node.comparators)
            by_identity = all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
            # NOTE: no argument is text, which only constants are.
            text = all(isinstance(op, (ast.Eq, ast.NotEq)) for op in node.ops) and any(
                isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts
            )
            for part in parts:
                self.tested(part, by_identity or text)
        elif isinstance(node, ast.Call):
            self.tested(node, False)
        else:
            raise RefusedError(f"branches on {ast.unparse(node)}")

    def tested(self, node: ast.expr, by_identity: bool) -> None:
        """Read one side of a comparison."""
        if isinstance(node, (ast.Tuple, ast.List)):
            for part in node.elts:
                self.tested(part, by_identity)
            return
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            known = name in _TESTS
        elif isinstance(node, ast.Attribute):
            outer = self.global_of(node) is not _MISSING
            known = self._is_me(node.value) or outer or node.attr in _TESTED
        else:
            known = isinstance(node, ast.Constant) or (by_identity and isinstance(node, ast.Name))
        if not known:
            raise RefusedError(f"branches on {ast.unparse(node)}")
        if not isinstance(node, ast.Name):
            self.expression(node)

    def _is_me(self, node: ast.expr) -> bool:
        return bool(self.me) and isinstance(node, ast.Name) and node.id == self.me

    def global_of(self, node: ast.expr) -> Any:
        """What a name outside of the function, or an attribute of a module there, stands for."""
        if isinstance(node, ast.Name) and node.id not in self.locals:
            if node.id in self.outer:
                value = self.outer[node.id]
                if node.id in self.function.__code__.co_freevars:
                    if node.id != "__class__":
                        raise RefusedError("reads a variable of an outer function")
                else:
                    self.reader.outside.add(module_of(self.function), node.id, value)
                return value
            return getattr(builtins, node.id, _MISSING)
        if isinstance(node, ast.Attribute):
            owner = self.global_of(node.value)
            if isinstance(owner, ModuleType) and hasattr(owner, node.attr):
                value = getattr(owner, node.attr)
                if owner is not math:
                    self.reader.outside.add(owner, node.attr, value)
                return value
        return _MISSING

    def expression(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self.call(node)
            return
        if isinstance(node, ast.IfExp):
            known = self.constant(node.test)
            if known is _UNKNOWN:
                self.test(node.test)
            for branch, taken in ((node.body, True), (node.orelse, False)):
                if known is _UNKNOWN or bool(known) is taken:
                    self.expression(branch)
            return
        if isinstance(node, ast.Attribute):
            self.attribute(node)
            return
        if isinstance(node, ast.Constant):
            self.reader.note(node.value)
        elif isinstance(node, ast.Name):
            if self._is_me(node):
                raise RefusedError("hands the module on")
            if node.id not in self.locals:
                value = self.global_of(node)
                if not isinstance(value, _VALUES) and value not in (Tensor, int, float):
                    raise RefusedError(f"refers to {node.id}")
                self.reader.note(value)
        elif not isinstance(node, _EXPRESSIONS):
            raise RefusedError(f"has an expression {type(node).__name__.lower()}")
        for child in ast.iter_child_nodes(node):
            self.expression(child)

    def attribute(self, node: ast.Attribute) -> None:
        if self._is_me(node.value):
            value = self.reader._attribute(node.attr)
            if not (value is None or isinstance(value, (*_VALUES, torch_nn.Parameter))):
                raise RefusedError(f"reads {node.attr}")
            return
        value = self.global_of(node)
        if value is not _MISSING:
            if not isinstance(value, _VALUES) and value is not Tensor:
                raise RefusedError(f"refers to {node.attr}")
            self.reader.note(value)
            return
        if isinstance(node.value, ast.Call) and node.attr in ("eps", "max", "min"):  # of finfo
            self.expression(node.value)
            return
        if node.attr not in _TENSOR_ATTRIBUTES:
            raise RefusedError(f"reads an attribute {node.attr}")
        self.expression(node.value)

    def call(self, node: ast.Call) -> None:
        for argument in (*node.args, *node.keywords):
            self.expression(argument)
        function = node.func
        if isinstance(function, ast.Attribute):
            if self._is_me(function.value):
                self.method(function.attr)
                return
            if self._is_super(function.value):
                self.inherited(function.attr)
                return
        value = self.global_of(function)
        if value is not _MISSING:
            self.known(value)
        elif isinstance(function, ast.Subscript):
            read_entry(self, function)
        elif isinstance(function, ast.Attribute) and function.attr in _TENSOR_METHODS:
            self.reader.calls.add(function.attr)
            self.expression(function.value)
        else:
            raise RefusedError(f"calls {ast.unparse(function)}")

    @staticmethod
    def _is_super(node: ast.expr) -> bool:
        if not isinstance(node, ast.Call) or node.args or node.keywords:
            return False
        return isinstance(node.func, ast.Name) and node.func.id == "super"

    def known(self, value: Any) -> None:
        """Read a function that is no method."""
        if isinstance(value, functools.partial):
            if not all(isinstance(v, _VALUES) for v in (*value.args, *value.keywords.values())):
                raise RefusedError("calls a partial of other things than numbers")
            value = value.func
        if isinstance(value, BuiltinFunctionType) and getattr(math, value.__name__, None) is value:
            return
        hashable = getattr(value, "__hash__", None) is not None
        if hashable and value in _BUILTINS:
            return
        if hashable and value in self.reader.functions:
            self.reader.calls.add(value)
            return
        self.reader._function(value, None, None, self.depth + 1)

    def method(self, name: str) -> None:
        """Read what calling an attribute of the module calls."""
        reader, kind = self.reader, type(self.reader.module)
        value = vars(reader.module).get(name, _MISSING)
        if value is not _MISSING:
            reader.flags[name] = value
            if isinstance(value, MethodType) and value.__self__ is reader.module:
                reader._function(value.__func__, reader.module, kind, self.depth + 1)
            else:
                self.known(value)
            return
        for base in kind.__mro__:
            if name in vars(base):
                value = vars(base)[name]
                reader.outside.add_method(kind, name)
                reader.methods.add(name)
                if isinstance(value, staticmethod):
                    self.known(value.__func__)
                else:
                    reader._function(value, reader.module, base, self.depth + 1)
                return
        raise RefusedError(f"calls {name}")

    def inherited(self, name: str) -> None:
        """Read what super() has under a name."""
        kinds = type(self.reader.module).__mro__
        own = self.outer.get("__class__")
        if own not in kinds:
            raise RefusedError("calls super() of another class")
        for base in kinds[kinds.index(own) + 1 :]:
            if name in vars(base):
                self.reader.outside.add(base, name, vars(base)[name])
                self.reader._function(vars(base)[name], self.reader.module, base, self.depth + 1)
                return
        raise RefusedError(f"calls super().{name}")
