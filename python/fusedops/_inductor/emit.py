"""Writes a site into its graph: calls of our ops with the meta data that AOTAutograd reads."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from .graph import (
    CONVERT,
    Joint,
    aten,
    dtype_of,
    erase_unread,
    is_call,
    reached_from,
    same_shape,
    tangents,
    value,
)
from .sites import Derived, Out

if TYPE_CHECKING:
    from torch.fx import Node

    from .sites import Site, Step

COPIED = ("stack_trace", "nn_module_stack", "seq_nr", "recompute", "ac_graph_id", "original_aten")
FORWARD, BACKWARD = "is_forward", "is_backward"


def emit(joint: Joint, site: Site) -> None:
    """Replace what the site replaces; the graph is left to be sorted, or as it was on an error."""
    writer = Writer(joint)
    try:
        for step in site.steps:
            writer.run(step)
        values = [writer.fitted(by, node) for node, by in site.replacements]
    except Exception:
        for node in reversed(writer.made):
            joint.graph.erase_node(node)
        raise
    for (node, _), new in zip(site.replacements, values, strict=True):
        node.replace_all_uses_with(new)
    erase_unread(joint.graph, [replacement.node for replacement in site.replacements])


class Writer:
    """Makes nodes in the place, and with the marks, of the node that it is `at`."""

    def __init__(self, joint: Joint) -> None:
        self.joint, self.graph = joint, joint.graph
        self.results: list[Node] = []
        self.items: dict[Out, Node] = {}
        self.made: list[Node] = []
        self.like: Node  # whose place and marks new nodes take
        self.mode: Any
        self.tag = FORWARD

    def run(self, step: Step) -> None:
        self.at(step.like)
        self.results.append(self.call(step.op, step.args))

    def at(self, like: Node) -> None:
        self.like = like
        self.tag = BACKWARD if like in self.joint.backward else FORWARD
        fakes = value(like)  # a tuple of many results
        one = fakes if isinstance(fakes, torch.Tensor) else next(f for f in fakes if f is not None)
        self.mode = one.fake_mode

    def call(self, op: Any, args: Any, kwargs: Any = None) -> Node:
        args = self.nodes(args)
        with self.graph.inserting_before(self.like):
            node = self.graph.call_function(op, args, kwargs or {})
        self.made.append(node)
        fakes = torch.fx.node.map_arg(args, value)
        with self.mode, torch.no_grad():
            node.meta["val"] = op(*fakes, **node.kwargs)
        return self.marked(node)

    def marked(self, node: Node) -> Node:
        node.meta.update({k: self.like.meta[k] for k in COPIED if k in self.like.meta})
        node.meta["partitioner_tag"] = self.tag
        return node

    def nodes(self, arg: Any) -> Any:
        """An argument with nodes in place of results and derived values."""
        if isinstance(arg, Out):
            return self.item(arg)
        if isinstance(arg, Derived):
            return self.call(arg.op, arg.args, arg.kwargs)
        if isinstance(arg, (tuple, list)) and not isinstance(arg, torch.Size):
            return type(arg)(self.nodes(a) for a in arg)
        return arg

    def item(self, out: Out) -> Node:
        result = self.results[out.step]
        if isinstance(value(result), torch.Tensor):
            return result
        if out not in self.items:
            with self.graph.inserting_after(result):
                node = self.graph.call_function(operator.getitem, (result, out.item))
            self.made.append(node)
            node.meta.update({k: result.meta[k] for k in (*COPIED, "partitioner_tag")
                              if k in result.meta})  # fmt: skip
            node.meta["val"] = value(result)[out.item]
            self.items[out] = node
        return self.items[out]

    def fitted(self, by: Any, old: Node) -> Node:
        """The value in the dtype and shape of the node that it stands for.

        The partitioner takes one of many results for code that fuses with its readers: for backward
        it would rather save what they make of it, by a pass of its own, in another layout or in
        float32. It fuses no detach, which Inductor leaves out: that is in memory, as a product is.
        """
        self.at(old)
        new: Node = self.nodes(by)
        if new.target is operator.getitem and self.tag == FORWARD:
            new = self.call(aten.detach.default, (new,))
        if dtype_of(new) is not dtype_of(old):
            new = self.call(CONVERT, (new, dtype_of(old)))
        if not same_shape(new, old):
            new = self.call(aten.reshape.default, (new, self.joint.sizes_of(old)))
        return new


def share_sizes(graph: torch.fx.Graph) -> None:
    """Take every symbolic size from the first node that has it.

    A view in backward may otherwise need a node of the forward for nothing but its size. Forward
    has no tangents to take one from, although they stand before its nodes.
    """
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    backward = reached_from(tangents(graph))
    sources: dict[str, Node | tuple[Node, int]] = {
        str(value(n)): n for n in reversed(inputs) if isinstance(value(n), torch.SymInt)
    }
    for node in list(graph.nodes):
        fake = value(node)
        if is_call(node, aten.sym_size.int) and isinstance(fake, torch.SymInt):
            key = str(fake)
            source = sources.get(key, node)
            if isinstance(source, tuple) and source == node.args:
                source = node
            elif isinstance(source, tuple):
                after = inputs[-1] if source[0].op == "placeholder" else source[0]
                with graph.inserting_after(after):
                    new = graph.call_function(aten.sym_size.int, source)
                new.meta.update(node.meta)
                new.meta["partitioner_tag"] = FORWARD
                source = new
            if source is not node:
                node.replace_all_uses_with(source)
                graph.erase_node(node)
            if source not in backward:
                sources[key] = source
        elif node in backward:
            continue
        elif isinstance(fake, torch.SymInt):
            sources.setdefault(str(fake), node)
        elif isinstance(fake, torch.Tensor):
            for dim, size in enumerate(fake.shape):
                if isinstance(size, torch.SymInt):
                    sources.setdefault(str(size), (node, dim))
