"""Which values of a row of statements are one convolution with its norm, residual, activation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn as torch_nn

from ...nn.activation import activation_name
from ...nn.conv_call import dims_of
from ..chains import Path, child
from .graph import Graph, Node, is_inlinable
from .norms import know_norm
from .unit import know_passing

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True)
class Unit:
    """One convolution and what runs with it, as paths from the module that calls them."""

    conv: Path
    norm: Path | None
    between: tuple[Path, ...] = ()
    act: Path | str | None = None  # a module's path, or an activation's name
    in_place: bool = False
    has_residual: bool = False
    hands_on: bool = False  # gives its input for those that read it behind, too


@dataclass
class Match:
    """A unit and the values that it stands for."""

    unit: Unit
    nodes: list[Node]
    input: Node
    residual: Node | None


class Matcher:
    """Finds the units of a graph; kept are values that something else reads, too."""

    def __init__(self, graph: Graph, kept: Collection[Node]) -> None:
        self.graph, self.kept = graph, set(kept)
        self._inline_before_sums()
        self.user: dict[Node, Node] = {}
        for node in graph.nodes:
            for arg in (*node.args, *node.names.values()):
                self.user[arg] = node

    def module(self, node: Node | None) -> Any:
        """The child that a value is called from."""
        if node is None or node.op != "call":
            return None
        return child(self.graph.module, node.path)

    def _inline_before_sums(self) -> None:
        """Take Sequentials apart whose convolution a residual is added to."""
        for node in list(self.graph.nodes):
            if node.op != "add":
                continue
            for arg in node.args[:1] if node.in_place else node.args:
                found = arg
                while found.op == "call" and know_passing(self.module(found)):
                    found = found.args[0]
                if found.op != "call" or found.users != 1 or found in self.kept:
                    continue
                if is_inlinable(self.module(found)) and self._ends_in_unit(self.module(found)):
                    self.graph.inline(found)
                    break

    def _ends_in_unit(self, module: Any) -> bool:
        """Whether a Sequential's last modules are a convolution and its norm."""
        if not is_inlinable(module):
            return False
        layers = list(module._modules.values())
        if is_inlinable(layers[-1]):
            return self._ends_in_unit(layers[-1])
        while len(layers) > 2 and know_passing(layers[-1]):
            layers.pop()
        return len(layers) > 1 and know_norm(layers[-1]) and dims_of(layers[-2]) is not None

    def next(self, node: Node) -> Node | None:
        """What alone reads a value; None where several do, or what comes behind."""
        if node.users != 1 or node in self.kept:
            return None
        return self.user.get(node)

    def find(self) -> list[Match]:
        """The units, none of which shares a value with another one."""
        found: list[Match] = []
        taken: set[Node] = set()
        for node in self.graph.nodes:
            if dims_of(self.module(node)) is None:
                continue
            match = self._match(node)
            if match is not None and not taken & set(match.nodes):
                found.append(match)
                taken.update(match.nodes)
        return [self._handing_on(match, found) for match in found]

    def _handing_on(self, match: Match, found: list[Match]) -> Match:
        """The match, which hands its input on where all others read it behind and keep it."""
        node, conv = match.input, self.module(match.nodes[0])
        if node in self.kept or max(conv.kernel_size) > 1:
            return match
        order = {node: i for i, node in enumerate(self.graph.nodes)}
        # NOTE: a unit runs where its last value stands.
        runs = {inner: order[one.nodes[-1]] for one in found for inner in one.nodes}
        mine = order[match.nodes[-1]]
        others = [
            other for other in self.graph.nodes
            if other is not match.nodes[0] and node in (*other.args, *other.names.values())
        ]  # fmt: skip
        behind = all(runs.get(other, order[other]) > mine for other in others)
        if not others or not behind or not all(self._keeps(o, o in runs, node) for o in others):
            return match
        return replace(match, unit=replace(match.unit, hands_on=True))

    def _keeps(self, reader: Node, in_unit: bool, node: Node) -> bool:
        """Whether what reads a value does not write into it."""
        if in_unit:
            return True
        if reader.op == "add":
            return not reader.in_place or reader.args[0] is not node
        module = self.module(reader)
        return module is not None and all(_keeps_input(m) for m in module.modules())

    def _match(self, conv: Node) -> Match | None:
        nodes = [conv]
        behind = self.next(conv)
        norm = behind if know_norm(self.module(behind)) else None
        if norm is not None:
            nodes.append(norm)
        end = nodes[-1]
        between: list[Node] = []
        after = self.next(end)
        while after is not None and know_passing(self.module(after)):
            between.append(after)
            after = self.next(after)
        tail = [*nodes, *between]
        residual, act, in_place = None, None, False
        if after is not None and after.op == "add" and self._adds(after, tail, conv):
            residual = next((a for a in after.args if a is not tail[-1]), None)
            if residual is not None:
                in_place = after.in_place
                tail.append(after)
                after = self.next(after)
        activation = self._activation(after)
        if activation is not None and after is not None:
            act = activation
            tail.append(after)
        if residual is None and act is None:
            tail, between = nodes, []
        if norm is None and (residual is None and act is None):
            return None  # a convolution alone
        paths = tuple(node.path for node in between)
        unit = Unit(
            conv.path, None if norm is None else norm.path, paths, act, in_place,
            residual is not None,
        )  # fmt: skip
        return Match(unit, tail, conv.args[0], residual)

    def _activation(self, node: Node | None) -> Path | str | None:
        if node is None:
            return None
        if node.op == "act":
            return node.name
        return node.path if activation_name(self.module(node)) is not None else None

    def _adds(self, add: Node, tail: list[Node], conv: Node) -> bool:
        """Whether a sum may be the unit's: nothing that runs before it changes its input."""
        if add.args[0] is add.args[1] or (add.in_place and add.args[0] is not tail[-1]):
            return False
        order = {node: i for i, node in enumerate(self.graph.nodes)}
        inside = set(tail)
        moved = [
            node for node in self.graph.nodes[order[conv] : order[add]]
            if node not in inside and node.op != "input"
        ]  # fmt: skip
        return all(self._harmless(node, conv.args[0]) for node in moved)

    def _harmless(self, node: Node, source: Node) -> bool:
        """Whether a call leaves a value as it is that it runs before now."""
        if source in node.args or not _fresh(source, self):
            module = self.module(node)
            return module is not None and all(_keeps_input(m) for m in module.modules())
        return node.op in ("call", "act", "add")


def _fresh(node: Node, matcher: Matcher) -> bool:
    """Whether a value's memory is nobody else's: a convolution or a norm has made it."""
    if node.op == "call":
        module = matcher.module(node)
        if dims_of(module) is not None or know_norm(module):
            return True
    if node.op == "add" and not node.in_place:
        return True
    if node.op in ("call", "act", "add"):
        return _fresh(node.args[0], matcher)
    return False


def _keeps_input(module: Any) -> bool:
    """Whether a module does not write into what it is given."""
    theirs = type(module).__module__.startswith("torch.nn.") or know_norm(module)
    own = is_inlinable(module) or isinstance(module, torch_nn.Sequential)
    return (theirs or own) and not getattr(module, "inplace", False)
