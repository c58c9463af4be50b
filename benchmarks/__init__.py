"""Measurements of what the project promises in numbers: ``python -m benchmarks --help``.

Each benchmark compares within one run on one machine, and writes its record to ``benchmarks/results/``.
"""
