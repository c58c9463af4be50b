"""What of a finished tune is kept for the next one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aitune.testing.modules import Mlp
from aitune.torch.backend import ONNXRuntimeBackend
from aitune.torch.bench import Rules, Shelf
from aitune.torch.bench.shelf import Known
from aitune.torch.store import Store, describe_subject
from aitune.torch.trial import ORIGINAL, Trial, Verdict
from aitune.torch.tune_strategy import FirstWinsStrategy

BACKEND = ONNXRuntimeBackend()


@pytest.fixture
def shelf(tmp_path, graph_of):
    module = Mlp()
    subject = describe_subject(module, graph_of(module), torch.device("cpu"))
    return lambda: Shelf(Store(tmp_path), lambda: subject, FirstWinsStrategy(), [BACKEND], Rules())


@pytest.mark.parametrize(("verdict", "kept"), [(Verdict.slower, True), (Verdict.undecided, False)])
def test_that_the_original_stays_is_kept_unless_a_busy_machine_is_why(shelf, graph_of, verdict, kept):
    one, graph = shelf(), graph_of(Mlp())
    known = Known(Trial(backend=BACKEND.describe(), verdict=verdict))
    one.keep(BACKEND, graph, known, files=lambda: Path(), seconds=None)
    assert shelf().unfinished
    one.finish(Trial(backend=ORIGINAL, verdict=Verdict.accepted), graph, None, [(BACKEND, known)])
    assert (shelf().choice() is not None) is kept
    assert not shelf().unfinished
    assert shelf().recall(BACKEND, graph, None) is None
