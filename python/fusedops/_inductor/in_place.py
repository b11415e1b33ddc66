"""Backwards of MLPs that write over what forward saved for them, where nothing else reads it.

The eager ops do so: one kernel forms the gradient and the hidden values at once, over the stored
pre-activation. In a graph that means a mutation, which AOTAutograd's partitioner must not see: so
this runs on the graph of backward alone, and only on saved tensors that AOTAutograd has given away
("donated buffers": alive for this backward only; it refuses retain_graph for such a graph).
Inductor's own pass then tells whether the mutation can stand; where not, it copies.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2

from .graph import aten, equal_sizes, item_of, value
from .graph_pass import PassBehind, declare_fallbacks, sources

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch.fx import Graph, Node

F = torch.ops.fusedops


class _Form(NamedTuple):
    """A backward, the op that does it in place, and where the results of the one are.

    Attributes:
        wanted: Places among the arguments that must be true: else nothing is gained.
        dropped: Places among the arguments that the op in place does not have.
        results: By the results of the backward: which result of the op in place each is; the last
            one of that op is what `saved` became.
    """

    in_place: Any
    wanted: tuple[int, ...]
    dropped: tuple[int, ...]
    results: tuple[int, ...]


# dy, saved, weight, [activation, ...]: see csrc/schema/mlp.h.
_FORMS = {
    F.mlp_backward.default: _Form(F.mlp_backward_.default, (4, 6), (), (0, 1, 2, 3)),
    F.gated_mlp_backward.default: _Form(F.gated_mlp_backward_.default, (5, 7), (5,), (3, 0, 1, 2)),
}


class InPlacePass(PassBehind):
    """Lets backwards write over saved tensors, in a graph of backward.

    Args:
        first: A pass to run before, as Inductor takes it: one that the user had set.
    """

    def uuid(self) -> Any:
        """What the result depends on, besides the graph and what is donated."""
        return self.key(sources(), donated())

    def rewrite(self, graph: Graph) -> None:
        given = set(donated() or ())
        if given:
            _write_over(graph, given)
        declare_fallbacks(graph)


def _write_over(graph: Graph, given: Collection[int]) -> None:
    """Let backwards write over those of their saved inputs whose places are given."""
    inputs = graph.find_nodes(op="placeholder")
    shared = Counter(map(_storage, inputs))
    owned = {n for i, n in enumerate(inputs) if i in given and shared[_storage(n)] == 1}
    for target, form in _FORMS.items():
        for node in graph.find_nodes(op="call_function", target=target):
            saved = node.args[1]
            wanted = all(node.args[i] for i in form.wanted)
            if wanted and saved in owned and len(saved.users) == 1 and _is_dense(saved):
                _write(graph, node, form)


def donated() -> list[int] | None:
    """The inputs of the graph being compiled that nothing else will read, by their places."""
    from torch._inductor.utils import get_donated_idxs

    places: list[int] | None = get_donated_idxs()
    return places


def _is_dense(node: Node) -> bool:
    """Whether the tensor is in row-major order: other ones the op would copy. Adds no guard."""
    fake, elements = value(node), 1
    for size, stride in zip(reversed(fake.shape), reversed(fake.stride()), strict=True):
        if not equal_sizes(stride, elements):
            return False
        elements = elements * size
    return True


def _storage(node: Node) -> Any:
    fake = value(node)
    return fake.untyped_storage()._cdata if isinstance(fake, torch.Tensor) else None


def _write(graph: Graph, node: Node, form: _Form) -> None:
    """Put the op in place where the backward stands."""
    saved: Any = node.args[1]
    names = [a.name for a in form.in_place._schema.arguments]
    given = [a for i, a in enumerate(node.args) if i not in form.dropped]
    rest = [None, False, *given[3:]]  # no main_grad, nothing is added to it
    arguments = dict(zip(names, [given[0], saved, given[2], *rest], strict=True))
    del arguments["saved"], arguments["main_grad"]
    bases = {"_saved_base_index": 0, "_main_grad_base_index": None, "_all_bases": [saved]}
    results, fake = value(node), value(saved)
    fakes = [results[form.results.index(i)] for i in range(len(form.in_place._schema.returns))]
    with fake.fake_mode:
        fakes.append(torch.empty_like(fake))  # a storage of its own: it is no view of saved here
    with graph.inserting_before(node):
        call = graph.call_function(auto_functionalized_v2, (form.in_place,), {**arguments, **bases})
        call.meta.update({**node.meta, "val": tuple(fakes)})
        items = [graph.call_function(operator.getitem, (call, i)) for i in range(len(fakes))]
    for item, its in zip(items, fakes, strict=True):
        item.meta.update({**node.meta, "val": its})
    for user in list(node.users):
        item = item_of(user)
        assert item is not None  # a tuple is read in no other way
        user.replace_all_uses_with(items[form.results[item[1]]])
        graph.erase_node(user)
    graph.erase_node(node)
    with graph.inserting_before(graph.output_node()):
        back = graph.call_function(aten.copy_.default, (saved, items[-1]))
    back.meta["val"] = fake
    for item in items:
        if not item.users:
            graph.erase_node(item)
