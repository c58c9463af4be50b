"""The doctor: what this machine and this environment can tune with, and what stands in the way."""

from aitune.torch.doctor.diagnosis import BackendState, Diagnosis, Problem
from aitune.torch.doctor.examine import doctor

__all__ = ["BackendState", "Diagnosis", "Problem", "doctor"]
