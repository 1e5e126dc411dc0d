"""Who runs a graph: the providers that ONNX Runtime gave its nodes to, and whether that is what was asked for. Called by `session`.

ONNX Runtime hands whatever a provider does not take to its CPU provider without a word. Versions from 1.24 on tell node by node. Older ones cannot, so
there the CPU provider is forbidden to take anything, and a session that needs it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeinfer.backends.base import Placement
from edgeinfer.backends.onnx.provider_search import Target
from edgeinfer.backends.onnx.providers import CPU_PROVIDER, PROVIDERS
from edgeinfer.core.errors import ProviderError


def tells_placement(library: Any) -> bool:
    return hasattr(library.InferenceSession, "get_provider_graph_assignment_info")


def placement_settings(library: Any, target: Target) -> Mapping[str, str]:
    """What a session is to be made with, so that `placement_of` can tell."""
    if target.is_cpu:
        return {}
    return {"session.record_ep_graph_assignment_info": "1"} if tells_placement(library) else {"session.disable_cpu_ep_fallback": "1"}


def placement_of(library: Any, session: Any, target: Target, nodes: int) -> Placement:
    """Of a session that was made with `placement_settings` from a graph of so many nodes."""
    counts: dict[str, int] = {}
    if target.is_cpu or not tells_placement(library):
        counts[target.runtime_name] = nodes
    else:
        for part in session.get_provider_graph_assignment_info():
            counts[part.ep_name] = counts.get(part.ep_name, 0) + len(part.get_nodes())
    own = counts.get(CPU_PROVIDER, 0) if target.is_cpu else sum(count for name, count in counts.items() if name != CPU_PROVIDER)
    return Placement(target.name, target.dialect, target.device, counts, own, target.reason)


def require_share(placement: Placement, minimum: float, options: Mapping[str, str]) -> None:
    """Raises ProviderError when the provider runs less of the graph than that: the rest falls to the CPU provider, which is not what was asked for.

    `options` are those that the provider was given. With one that does not fit this machine, some take nothing and say nothing.
    """
    if placement.share >= minimum and placement.provider_nodes:
        return
    entry = PROVIDERS.get(placement.provider)
    other = f" or the dialect that it is known to take ({placement.provider}:dialect={entry.dialect})" if entry and entry.dialect != placement.dialect else ""
    lower = f"accept less (--min-share {placement.share - 5e-5:.4f}), " if placement.provider_nodes else ""
    given = ",".join(f"{key}={value}" for key, value in options.items())
    doubt = f"check its options, {given}, or " if given and not placement.provider_nodes else ""
    raise ProviderError(
        f"the provider {placement.provider} takes only {placement.provider_nodes} of {placement.total} nodes ({placement.share:.1%}) of this model's graph in "
        f"the dialect {placement.dialect}, {'but' if placement.provider_nodes else 'and'} at least {minimum:.0%} was asked for; {lower}{doubt}"
        f"choose another provider{other}"
    )
