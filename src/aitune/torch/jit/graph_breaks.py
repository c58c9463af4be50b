"""Whether dynamo can follow a module in one piece: a graph break is told from an error of another kind."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aitune.torch.export.twin import on_a_twin
from aitune.torch.graph.job import Job
from aitune.torch.module.recording import Recording
from aitune.torch.module.tune_module import module_device

__all__ = ["Breaks", "find_graph_breaks"]


@dataclass(frozen=True)
class Breaks:
    """What dynamo found.

    Attributes:
        breaks: Whether the module has a graph break; False also where dynamo failed in another way, which says
            nothing about the module: backends that do without dynamo may still serve it.
        why: The first line of what dynamo said; empty without a break or an error.
        seconds: How long it took.
    """

    breaks: bool
    why: str
    seconds: float

    def sentence(self, title: str) -> str:
        """Return the finding in words."""
        if self.breaks:
            return f"Graph break in {title}: {self.why}"
        return f"No graph breaks in {title}" if not self.why else f"Graph breaks of {title} cannot be told: {self.why}"


def find_graph_breaks(module: torch.nn.Module, recording: Recording) -> Breaks:
    """Follow a copy of the module over one sample of each graph.

    Neither the module nor compiled code of the process is touched: ``torch._dynamo.explain`` is not used, since it
    throws away everything that was compiled.

    Args:
        module: The module; its parameters and buffers are shared with the copy.
        recording: Its recorded calls.
    """
    start = time.perf_counter()
    why, breaks = "", False
    for number, seen in enumerate(recording.observations):
        if not seen.samples:
            continue
        graph = seen.graph(f"graph{number}", recording.signature)
        job = Job("", module, graph, seen.samples, module_device(module), Path(), Path())
        found, text = _follow(on_a_twin(job).module, seen.samples[0].fresh())
        why = why or text
        if found:
            why, breaks = text, True
            break
    return Breaks(breaks, why, time.perf_counter() - start)


def _follow(twin: torch.nn.Module, sample: Any) -> tuple[bool, str]:
    from torch._dynamo import exc

    def run(*args: Any, **kwargs: Any) -> Any:
        return twin(*args, **kwargs)

    # a code object of its own: dynamo counts recompilations by it
    run.__code__ = run.__code__.replace(co_name=f"follow_{id(twin)}")
    compiled = torch.compile(run, backend=_without_a_compiler, fullgraph=True)
    try:
        with torch.no_grad():
            compiled(*sample.args, **dict(sample.kwargs))
    except (exc.Unsupported, exc.UserError) as error:
        return True, _first_line(error)
    except Exception as error:  # noqa: BLE001 - dynamo and the module may raise anything
        return False, f"{type(error).__name__}: {_first_line(error)}"
    return False, ""


def _without_a_compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:  # noqa: ARG001 - the interface of a backend
    return graph.forward


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
