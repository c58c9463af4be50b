"""The store: engines and verdicts kept across processes, found by the content of what they were made from."""

from aitune.torch.store.entry import Entry
from aitune.torch.store.journal import Choice, Journal
from aitune.torch.store.key import Key, NoKeyError, entry_key, tune_key
from aitune.torch.store.store import Store, Turn
from aitune.torch.store.subject import Subject, describe_subject
from aitune.torch.store.upkeep import Listed, clear, list_entries, prune, verify

__all__ = [
    "Choice",
    "Entry",
    "Journal",
    "Key",
    "Listed",
    "NoKeyError",
    "Store",
    "Subject",
    "Turn",
    "clear",
    "describe_subject",
    "entry_key",
    "list_entries",
    "prune",
    "tune_key",
    "verify",
]
