"""Taking over a module's calls: slot, recording, dispatch, and the handle that the user holds."""

from aitune.torch.module.handle import Handle, ModuleState
from aitune.torch.module.module import Module, handle

__all__ = ["Handle", "Module", "ModuleState", "handle"]
