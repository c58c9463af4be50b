"""``tune()``, the main entry of ahead-of-time mode."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from aitune.torch.backend.resident import return_freed
from aitune.torch.check.check import Check
from aitune.torch.config import checked_seconds, config, finite
from aitune.torch.dataloader import BatchSource
from aitune.torch.events import Event, listening
from aitune.torch.module.handle import tuning_alone
from aitune.torch.report import TuneResult, progress_listener, write_record
from aitune.torch.store import Store
from aitune.torch.store import clear as clear_store
from aitune.torch.tuning.quiet import external_logging_disabled
from aitune.torch.tuning.request import (
    Request,
    checked_check,
    checked_device,
    checked_flag,
    checked_func,
    checked_seed,
)
from aitune.torch.tuning.run import Run
from aitune.torch.worker import BuildFolders

__all__ = ["tune"]

_log = logging.getLogger(__name__)


def tune(  # noqa: PLR0913 - the documented signature
    func: Any,
    dataset: Any = None,
    batch_sizes: Sequence[int] | None = None,
    max_num_batches_per_batch_size: int | None = None,
    device: Any = None,
    dry_run: bool = False,
    disable_external_logging: bool = False,
    clear_cache: bool = False,
    ignore_failing_modules: bool = True,
    *,
    time_limit: float | None = None,
    backend_time_limit: float | None = None,
    progress: bool | Callable[[Event], None] | None = None,
    check: Check | None = None,
    seed: int = 0,
) -> TuneResult:
    """Tune the wrapped modules that a function calls, and no others.

    The function is run on the dataset while the modules record; then each module's strategy tries its backends, and
    what is right and faster is installed. Finally the whole function is timed, and modules are put back if it got
    slower. A module that cannot be tuned runs as before.

    Args:
        func: An ``ait.Module``, or a function that calls wrapped modules. It is called often, with gradients disabled.
        dataset: What it is called with: a tensor (one sample, without batch axis), a sequence or ``Dataset`` of
            samples, an iterable of them, a ``DataLoader`` or a :class:`~aitune.torch.dataloader.DataLoaderFactory`.
            A mapping sample is keyword arguments, a tuple or list positional ones, ``((...), {...})`` both. None uses
            the calls that the modules recorded before; then ``func`` is a module or an object that holds modules.
        batch_sizes: Sizes to collate samples to; None is ``[1, 2]``. Two sizes are needed to find the batch axis.
        max_num_batches_per_batch_size: Batches of each size that are run; None is at most 32.
        device: Where to move the modules, where they stay; None leaves them. Inputs of a module (not of a function) are
            moved to where it is.
        dry_run: Record, find the graphs, print what would be tried, and change nothing.
        disable_external_logging: Silence other libraries' loggers meanwhile.
        clear_cache: Remove what earlier tunes left in ``config.cache_dir`` first.
        ignore_failing_modules: Leave a module that fails as it was, log it at ERROR and go on; False raises.
        time_limit: Seconds for everything, None or infinity for no limit; then whatever is running is ended and the
            best so far is used. What runs in this process (the module's own calls, builds that are not isolated) is
            waited for.
        backend_time_limit: Seconds that one backend may take in its worker to build and be checked, in place of
            ``config.backend_time_limit``; infinity for no limit. Builds in this process cannot be interrupted, so it
            has no effect on those.
        progress: True shows progress on stderr, False does not, None does on a terminal; a function gets every event.
        check: How outputs are judged, for modules whose strategy has no ``check`` of its own.
        seed: Seeds inputs that are synthesised; the global random state is as before afterwards.

    Returns:
        What was tried and chosen, with evidence; ``print`` shows a table.

    Raises:
        AITuneUserInputError: If something that was passed cannot be used; a ``ValueError`` that says what would be.
        Exception: What ``func`` itself raises, as it is; with ``ignore_failing_modules=False`` also what the tune of a
            module raises. After this and after ``KeyboardInterrupt``, every module runs as before, and
            :func:`aitune.exceptions.partial_result` of the exception gives what was found until then.
    """
    folders_cleared = checked_flag("clear_cache", clear_cache)
    request = Request(
        func=checked_func(func, has_dataset=dataset is not None),
        source=None if dataset is None else BatchSource(dataset, batch_sizes, max_num_batches_per_batch_size),
        dataset=dataset,
        device=checked_device(device),
        dry_run=checked_flag("dry_run", dry_run),
        ignore_failing_modules=checked_flag("ignore_failing_modules", ignore_failing_modules),
        time_limit=finite(checked_seconds("time_limit", time_limit)),
        backend_time_limit=checked_seconds("backend_time_limit", backend_time_limit),
        check=checked_check(check),
        seed=checked_seed(seed),
    )
    silent = checked_flag("disable_external_logging", disable_external_logging)
    if folders_cleared and not request.dry_run:
        _clear()
    with (
        tuning_alone(),
        progress_listener(progress) as listener,
        external_logging_disabled(silent),
        listening(listener),
    ):
        try:
            result = Run(request).tune()
        finally:
            return_freed()
    if request.dry_run:
        print(result)  # noqa: T201 - printing the plan is what a dry run is for
    elif config.tuning_data_output_path is not None:
        write_record(result, config.tuning_data_output_path)
    return result


def _clear() -> None:
    """Remove what earlier tunes left; a disk on which that is not possible does not stop this one."""
    try:
        BuildFolders.clear(config.cache_dir)
        clear_store(Store.configured(config).root)
    except OSError as error:
        _log.warning(
            "the store cannot be cleared, and what is in it may be used: %s; config.reuse_store = False builds anew",
            error,
        )
