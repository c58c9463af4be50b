"""Makes PyTorch models faster without making them wrong; the interface is ``aitune.torch``.

Importing this package imports nothing else and changes nothing in the process.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
