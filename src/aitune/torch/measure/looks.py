"""When a running comparison may look at its data, and how much error each look may spend."""

from __future__ import annotations

from dataclasses import dataclass

from aitune.torch.measure.profiling_config import ProfilingConfig

__all__ = ["Looks"]


@dataclass(frozen=True)
class Looks:
    """A fixed schedule of looks that share one error probability.

    Stopping at the first look whose interval is on one side of the threshold would claim gains that are not there
    if each look used the full error: with enough looks one of them errs. So the error is spent: after look j of J
    no more than ``j / J`` of it is gone (the alpha spending of Lan and DeMets, Biometrika 70, 1983, with a linear
    spending function). The errors of the looks are added up (Bonferroni's inequality), which bounds them together
    whatever their correlation. A comparison that runs out of time spends what is left on its last look; it ends by
    the clock and not by what the ratios say, so the sum still bounds the error.

    Attributes:
        blocks: Number of pairs of blocks at each look, growing by doubling: far fewer looks than pairs, at
            most twice the pairs that would have been enough.
        error: Probability, all looks together, that an interval misses the true ratio.
    """

    blocks: tuple[int, ...]
    error: float

    @classmethod
    def of(cls, config: ProfilingConfig) -> Looks:
        """Looks at ``min_blocks``, twice that, and so on up to ``max_blocks``."""
        blocks = [config.min_blocks]
        while blocks[-1] < config.max_blocks:
            blocks.append(min(2 * blocks[-1], config.max_blocks))
        return cls(blocks=tuple(blocks), error=1 - config.confidence)

    def confidence(self, look: int, spent: float, *, last: bool) -> float:
        """Confidence that the interval of one look must have.

        Args:
            look: Number of the look, from 0.
            spent: Error that earlier looks have spent.
            last: Whether no look follows.
        """
        share = 1.0 if last else (look + 1) / len(self.blocks)
        return 1 - (share * self.error - spent)
