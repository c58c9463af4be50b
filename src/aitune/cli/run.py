"""``aitune run``: a program with just-in-time tuning turned on."""

from __future__ import annotations

import os

import click

from aitune.cli.program import Program

__all__ = ["run"]

_STRATEGIES = {
    "first-wins": "FirstWinsStrategy",
    "max-throughput": "MaxThroughputStrategy",
    "min-latency": "MinLatencyStrategy",
    "one-backend": "OneBackendStrategy",
}


class _Run(click.Command):
    """Leaves what follows ``-m MODULE`` or ``-c CODE`` to the program, as the interpreter does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put an end of options behind the module or the text."""
        with_value = {name for option in self.params if not getattr(option, "is_flag", True) for name in option.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            if args[at] in ("-m", "-c"):
                args = [*args[: at + 2], "--", *args[at + 2 :]]
                break
            at += 2 if args[at] in with_value else 1
        return super().parse_args(ctx, args)


@click.command(cls=_Run, context_settings={"allow_interspersed_args": False})
@click.option("--strategy", type=click.Choice(sorted(_STRATEGIES)), help="How backends are tried and chosen.")
@click.option("--backends", metavar="NAME,NAME", help="Candidates in order, such as OpenVINOBackend.")
@click.option("--min-samples", type=click.IntRange(min=1), help="Calls that are recorded before a module is tuned.")
@click.option("--max-depth-level", type=click.IntRange(min=0), help="Level of the deepest modules that may be tuned.")
@click.option("--min-parameters", type=click.IntRange(min=0), help="Leave modules with fewer parameters alone.")
@click.option("--skip-modules", metavar="NAME,NAME", help="Class names to leave alone, with all below them.")
@click.option("--detect-graph-breaks", is_flag=True, help="Leave modules with graph breaks, tune what is in them.")
@click.option("--dry-run", is_flag=True, help="Log what would be tuned, and change nothing.")
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does; what follows is its own.")
@click.option("-c", "code", metavar="CODE", help="Run a text, as python -c does; what follows is its own.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def run(  # noqa: PLR0913 - one argument an option
    strategy: str | None,
    backends: str | None,
    min_samples: int | None,
    max_depth_level: int | None,
    min_parameters: int | None,
    skip_modules: str | None,
    detect_graph_breaks: bool,
    dry_run: bool,
    module: str | None,
    code: str | None,
    words: tuple[str, ...],
) -> Program:
    """Run a Python program with just-in-time tuning, where AUTOWRAPT_BOOTSTRAP does not start it.

    WORDS are the script and its arguments. Settings without an option here are read from AITUNE_JIT_<FIELD>.
    """
    if module is None and code is None and not words:
        raise click.UsageError("name a script, or -m MODULE, or -c CODE")
    settings = {
        "STRATEGY": _strategy(strategy, backends),
        "MIN_SAMPLES": min_samples,
        "MAX_DEPTH_LEVEL": max_depth_level,
        "MIN_PARAMETERS": min_parameters,
        "SKIP_MODULES": skip_modules,
        "DETECT_GRAPH_BREAKS": "1" if detect_graph_breaks else None,
        "DRY_RUN": "1" if dry_run else None,
    }
    # by the environment, so that processes which the program starts have them as well
    os.environ.update({f"AITUNE_JIT_{name}": str(value) for name, value in settings.items() if value is not None})
    if module is not None:
        return Program("module", module, words)
    if code is not None:
        return Program("code", code, words)
    return Program("script", words[0], words[1:])


def _strategy(strategy: str | None, backends: str | None) -> str | None:
    if strategy is None and backends is None:
        return None
    if strategy == "one-backend" and (not backends or "," in backends):
        raise click.UsageError("--strategy one-backend needs one backend: --backends OpenVINOBackend")
    name = _STRATEGIES[strategy or "first-wins"]
    return f"{name}({backends})" if backends else name
