"""Is a candidate faster, how long does a call take, which batch is best: callable in, frozen result out."""

from aitune.torch.measure.batch_size import BatchSizeSearch, search_batch_size
from aitune.torch.measure.clock import Clock, SystemClock
from aitune.torch.measure.interval import MedianInterval, median_interval
from aitune.torch.measure.latency import Latency, latency_percentiles
from aitune.torch.measure.memory import MemoryForecast, available_bytes, is_out_of_memory, peak_growth_bytes
from aitune.torch.measure.paired import compare
from aitune.torch.measure.paired_timing import Outcome, PairedTiming
from aitune.torch.measure.profiling_config import DEFAULT_MIN_GAIN, ProfilingConfig
from aitune.torch.measure.rank import TIE_MARGIN, Contender, HeadToHead, preferred, rivals
from aitune.torch.measure.stopwatch import Stopwatch

__all__ = [
    "DEFAULT_MIN_GAIN",
    "TIE_MARGIN",
    "BatchSizeSearch",
    "Clock",
    "Contender",
    "HeadToHead",
    "Latency",
    "MedianInterval",
    "MemoryForecast",
    "Outcome",
    "PairedTiming",
    "ProfilingConfig",
    "Stopwatch",
    "SystemClock",
    "available_bytes",
    "compare",
    "is_out_of_memory",
    "latency_percentiles",
    "median_interval",
    "peak_growth_bytes",
    "preferred",
    "rivals",
    "search_batch_size",
]
