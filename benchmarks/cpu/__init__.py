"""The automatic choice against every backend picked by hand, on seven models: ``python -m benchmarks cpu``.

Each row, a model at a batch size, is measured in a process of its own and kept in a file of its own, so that a run can
be interrupted and goes on with ``--resume``.
"""
