"""Just-in-time tuning: modules are discovered while a program runs, and tuned without a change to it.

Importing this package changes nothing; ``import aitune.torch.jit.enable`` turns it on.
"""
