"""How much memory of the device is taken, by whatever process; tests that ask have the device for themselves."""

from __future__ import annotations

import contextlib
import gc
import threading
import time

import torch


def taken():
    """Bytes that are taken of the device, once this process gave back what it does not use."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return in_use()


def in_use():
    free, total = torch.cuda.mem_get_info()
    return total - free


class Peak:
    """The most that was taken of the device in a block, looked at a hundred times a second, and at which stage.

    It is the progress of a tune, too, from which it knows the stages.
    """

    def __init__(self):
        self.stage = "before"
        self.stages = {}

    def __call__(self, event):
        if type(event).__name__ == "StageStarted":
            self.stage = f"{event.stage} {event.backend}".strip()

    def look(self):
        self.stages[self.stage] = max(self.stages.get(self.stage, 0), in_use())

    @property
    def bytes(self):
        return max(self.stages.values(), default=0)


@contextlib.contextmanager
def watched():
    peak, over = Peak(), threading.Event()

    def watch():
        while not over.is_set():
            peak.look()
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
