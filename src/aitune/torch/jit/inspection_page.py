"""What an inspection saw, as a page of HTML that needs nothing beside itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from aitune.torch.jit.patched_module import PatchedModule, short_count

__all__ = ["page"]


@dataclass(frozen=True)
class _Row:
    level: int
    name: str
    parameters: str
    calls: int
    milliseconds: str
    share: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def page(model_name: str, heads: Sequence[PatchedModule]) -> str:
    """Return the document.

    Args:
        model_name: What it calls the model.
        heads: The modules that were seen, each with what is below it.
    """
    import jinja2

    total = sum(head.inspection.seconds for head in heads if head.inspection is not None)
    nodes = [node for head in heads for node in (head, *head.below())]
    source = resources.files(__package__).joinpath("templates/inspection.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    rows = [_row(node, total) for node in nodes]
    return environment.from_string(source).render(model_name=model_name, rows=rows, total=f"{total * 1e3:.1f}")


def _row(node: PatchedModule, total: float) -> _Row:
    seen = node.inspection
    forms = seen.forms if seen is not None else ()
    seconds = seen.seconds if seen is not None else 0.0
    calls = seen.calls if seen is not None else 0
    return _Row(
        level=node.level,
        name=node.kind,
        parameters=short_count(node.parameters),
        calls=calls,
        milliseconds=f"{seconds / calls * 1e3:.3f}" if calls else "",
        share=f"{seconds / total:.0%}" if total else "",
        inputs=tuple(", ".join(form.inputs) for form in forms),
        outputs=tuple(", ".join(form.outputs) for form in forms),
    )
