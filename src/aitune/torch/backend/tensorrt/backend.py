"""TensorRT engines, by way of ONNX."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import BackendBuildError, BackendUnsupportedError
from aitune.torch.backend.artifact import Artifact
from aitune.torch.backend.availability import require
from aitune.torch.backend.base import Backend, BackendConfig, Engine, Requirement
from aitune.torch.backend.cuda_graphs import CudaGraphs
from aitune.torch.backend.function_engine import EngineFacts, FunctionEngine
from aitune.torch.backend.precision import lowest, module_precision
from aitune.torch.backend.quantization import (
    ONNXAutoCastConfig,
    ONNXQuantizationConfig,
    TorchQuantizationConfig,
)
from aitune.torch.backend.tensorrt.library import import_library, is_rtx
from aitune.torch.backend.tensorrt.plan import PlanOptions, build_plan, write_atomically
from aitune.torch.backend.tensorrt.profile import ProfileMode, TensorRTProfile, input_ranges
from aitune.torch.backend.tensorrt.quantize import (
    OPSET_OF_TWINS,
    Source,
    cast_file,
    exchangeable_file,
    quantized_file,
    quantized_twin,
    unquantizable,
)
from aitune.torch.backend.tensorrt.runner import Plan, TensorRTRunner
from aitune.torch.backend.validation import check_bool, check_choice, check_int, refuse
from aitune.torch.export.flat import flat_call
from aitune.torch.export.onnx import OnnxFile, export_onnx
from aitune.torch.graph.accessor import compile_call
from aitune.torch.graph.job import Job
from aitune.torch.trial import Precision

__all__ = ["TensorRTBackend", "TensorRTBackendConfig"]

_MODEL, _PLAN, _COMPILED = "model.onnx", "engine.plan", "compiled.cache"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool)
_COMPATIBILITY = ("none", "ampere_plus", "same_compute_capability")
_MODELOPT = Requirement("modelopt", "modelopt")
_QUANTIZATIONS = (ONNXAutoCastConfig, ONNXQuantizationConfig, TorchQuantizationConfig)


@dataclass(frozen=True)
class TensorRTBackendConfig(BackendConfig):
    """Options of TensorRT and of the ONNX export before it.

    Attributes:
        use_dynamo: Whether the module is exported by ``torch.export``; False traces it with TorchScript, as is done in
            any case after a ``TorchQuantizationConfig``, whose quantizers have no other form in ONNX.
        workspace_size: Bytes that TensorRT may use while it builds; None leaves it to the library.
        opset_version: ONNX opset; None: the exporter's default.
        optimization_level: 0 to 5, higher looks longer for quicker kernels; None leaves it to the library.
        compatibility_level: For which other GPUs the engine is to work: ``"none"``, ``"ampere_plus"`` or
            ``"same_compute_capability"``; None leaves it to the library.
        timing_cache: File in which measured kernel times are kept; None keeps none.
        profiles: For which sizes kernels are chosen: a mode, or profiles of one's own. TensorRT for RTX chooses
            kernels by the sizes of each call, whatever the profiles.
        quantization_config: How to compute in fewer bits, by ModelOpt; None computes in the module's own dtype. Inputs
            and outputs keep the module's dtypes. An opset that is too low for the operators that it takes is raised.
        enable_tf32: Whether float32 products may drop bits. TensorRT for RTX drops them in any case, so that its
            engines declare tf32.
        use_cuda_graphs: Whether calls are replayed as CUDA graphs.
    """

    use_dynamo: bool = True
    workspace_size: int | None = None
    opset_version: int | None = None
    optimization_level: int | None = None
    compatibility_level: str | None = None
    timing_cache: str | Path | None = None
    profiles: ProfileMode | Sequence[TensorRTProfile] = ProfileMode.SINGLE
    quantization_config: ONNXAutoCastConfig | ONNXQuantizationConfig | TorchQuantizationConfig | None = None
    enable_tf32: bool = True
    use_cuda_graphs: bool = False

    def __post_init__(self) -> None:
        check_bool(self, "use_dynamo", "enable_tf32", "use_cuda_graphs")
        check_int(self, "workspace_size", 1)
        check_int(self, "opset_version", 9)
        check_int(self, "optimization_level", 0, 5)
        check_choice(self, "compatibility_level", (*_COMPATIBILITY, None))
        if not isinstance(self.timing_cache, (str, Path, type(None))):
            raise refuse(self, "timing_cache", "a path or None", self.timing_cache)
        quantization: object = self.quantization_config
        if quantization is not None and not isinstance(quantization, _QUANTIZATIONS):
            names = ", ".join(kind.__name__ for kind in _QUANTIZATIONS)
            raise refuse(self, "quantization_config", f"one of {names} or None", quantization)
        if not isinstance(self.profiles, ProfileMode):
            object.__setattr__(self, "profiles", self._own_profiles())

    def _own_profiles(self) -> tuple[TensorRTProfile, ...]:
        profiles: Any = self.profiles
        wanted = "ProfileMode.SINGLE, ProfileMode.SAMPLES_USED or a list of TensorRTProfile"
        if isinstance(profiles, str) or not isinstance(profiles, Sequence) or not profiles:
            raise refuse(self, "profiles", wanted, profiles)
        if not all(isinstance(profile, TensorRTProfile) for profile in profiles):
            raise refuse(self, "profiles", wanted, profiles)
        return tuple(copy.deepcopy(profile) for profile in profiles)


class TensorRTBackend(Backend[TensorRTBackendConfig]):
    """Builds a TensorRT engine from the exported module, with ``tensorrt`` or ``tensorrt_rtx``."""

    config_class = TensorRTBackendConfig
    devices = ("cuda",)
    requires = (
        Requirement("tensorrt", "tensorrt", alternatives=("tensorrt_rtx",)),
        Requirement("onnx", "onnx"),
        Requirement("onnxscript", "onnx"),
    )
    complexity = 6

    def unsuitable(self, job: Job) -> str | None:
        """Return why the job cannot be served, None if it may be tried."""
        for spec in (*job.graph.inputs.tensors, *job.graph.outputs.tensors):
            if spec.dtype not in _DTYPES:
                return f"TensorRT does not take {spec.dtype}: {spec}"
        quantization = self.config.quantization_config
        reason = None if quantization is None else unquantizable(job, quantization)
        return reason or super().unsuitable(job)

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """The libraries that a build needs, as configured: ModelOpt too where it is to quantise."""
        return self.requires if self.config.quantization_config is None else (*self.requires, _MODELOPT)

    def build(self, job: Job) -> Engine:
        """Build an engine; see :meth:`Backend.build`. ``job.folder`` has to last as long as the engine.

        Raises:
            BackendUnsupportedError: If the module cannot be exported, or TensorRT cannot express it.
            BackendBuildError: If TensorRT builds no engine.
            BackendNotInstalledError: If a library is missing.
            AITuneUserInputError: If a profile does not fit the graph, or ModelOpt knows no config of a name.
        """
        require(self, job)
        input_ranges(job, self.config.profiles)  # raises what is the user's error before anything is built
        trt = self._library()
        job.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="onnx-", dir=job.folder) as folder:
            model, exported, precision = self._export(job, Path(folder))
            content = self._plan(trt, job.narrowed(dict(exported.narrowing.ranges)), model)
        (job.folder / _PLAN).write_bytes(content)
        # TensorRT for RTX drops bits of float32 products whatever it is told (1.4, as measured).
        if precision == "float32" and (self.config.enable_tf32 or is_rtx(trt)):
            precision = "tf32"
        artifact = Artifact(self.name, (_PLAN, _COMPILED), exported.routes, precision, exported.narrowing)
        return self._engine(job, job.folder, artifact)

    def _export(self, job: Job, folder: Path) -> tuple[Path, OnnxFile, Precision]:
        """Write the module as an ONNX file into a folder; return it and the coarsest precision that it computes in."""
        config, name, quantization = self.config, self.name, self.config.quantization_config
        exported_to, model = folder / "exported.onnx", folder / _MODEL
        own = module_precision(job)
        if isinstance(quantization, TorchQuantizationConfig):
            opset = config.opset_version or OPSET_OF_TWINS
            twin, precision = quantized_twin(job, quantization, name)
            exported = export_onnx(twin, exported_to, use_dynamo=False, opset=opset, backend=name)
            exchangeable_file(Source(exported_to, job, exported.routes), model, precision, name)
            return model, exported, lowest((own, precision))
        use_dynamo, opset_version = config.use_dynamo, config.opset_version
        exported = export_onnx(job, exported_to, use_dynamo=use_dynamo, opset=opset_version, backend=name)
        if quantization is None:
            return exported_to, exported, own
        source = Source(exported_to, job.narrowed(dict(exported.narrowing.ranges)), exported.routes)
        if isinstance(quantization, ONNXAutoCastConfig):
            precision = cast_file(source, model, quantization, name)
        else:
            precision = quantized_file(source, model, quantization, name)
        return model, exported, lowest((own, precision))

    def _plan(self, trt: Any, job: Job, model: Path) -> Any:
        """Build the plan of an ONNX file that holds for the job."""
        config, profiles = self.config, input_ranges(job, self.config.profiles)
        if is_rtx(trt):  # crashes where there are several; its kernels are made for the sizes of a call when it runs
            profiles = profiles[-1:]
        options = PlanOptions(
            profiles=profiles,
            workspace_size=config.workspace_size,
            optimization_level=config.optimization_level,
            compatibility_level=config.compatibility_level,
            timing_cache=None if config.timing_cache is None else Path(config.timing_cache),
            enable_tf32=config.enable_tf32,
        )
        with torch.cuda.device(job.device):
            return build_plan(trt, model, options, self.name)

    def load(self, job: Job, folder: Path) -> Engine:
        """Make an engine from saved files; see :meth:`Backend.load`."""
        require(self, job)
        self._library()
        return self._engine(job, folder, Artifact.read(folder, self.name))

    def _library(self) -> Any:
        try:
            return import_library()
        except (ImportError, OSError) as error:
            raise BackendUnsupportedError(self.name, f"TensorRT cannot be loaded here: {error}") from error

    def _engine(self, job: Job, folder: Path, artifact: Artifact) -> Engine:
        compiled = folder / _COMPILED
        plan = Plan(
            content=(folder / _PLAN).read_bytes(),
            compiled=compiled.read_bytes() if compiled.exists() else b"",
            graph=job.graph,
            routes=artifact.routes,
            device=job.device,
            backend=self.name,
        )
        runner = TensorRTRunner(self._library(), plan)
        samples = job.narrowed(dict(artifact.narrowing.ranges)).samples
        calls = [flat_call(job, sample) for sample in samples]
        try:
            for tensors in calls:  # kernels are chosen or compiled at the first call of each size
                runner(tensors)
            torch.cuda.synchronize(job.device)
        except RuntimeError as error:
            raise BackendBuildError(self.name, str(error)) from error
        if not compiled.exists():
            write_atomically(compiled, runner.compiled)
        facts = EngineFacts(precision=artifact.precision, narrowing=artifact.narrowing)
        if not self.config.use_cuda_graphs:
            return FunctionEngine(compile_call(job.graph, runner), facts, artifact, folder, runner.close)
        graphs = CudaGraphs(runner, job.graph, alone=True)
        problem = graphs.prepare(calls)

        def close() -> None:
            graphs.close()
            runner.close()

        facts = replace(facts, notes=() if problem is None else (problem,))
        return FunctionEngine(compile_call(job.graph, graphs), facts, artifact, folder, close)
