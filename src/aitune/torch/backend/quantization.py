"""Ways to give an engine fewer bits, as values: they name a method, and need no library."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from aitune.torch.backend.validation import check_bool, check_choice, check_options, refuse

__all__ = ["ONNXAutoCastConfig", "ONNXQuantizationConfig", "TorchQuantizationConfig"]

_CALIBRATIONS = {
    "int8": ("max", "entropy"),
    "fp8": ("max", "entropy"),
    "int4": ("rtn_dq", "awq_clip", "awq_lite", "awq_full"),
}


@dataclass(frozen=True)
class ONNXAutoCastConfig:
    """Casts the parts of an ONNX model that can take it to 16 bits.

    Attributes:
        precision: ``"fp16"`` or ``"bf16"``.
        keep_io_types: Whether inputs and outputs are left out of it. Calls see the module's dtypes either way: where
            it is False they are cast at the engine's boundary.
    """

    precision: str = "fp16"
    keep_io_types: bool = True

    def __post_init__(self) -> None:
        check_choice(self, "precision", ("fp16", "bf16"))
        check_bool(self, "keep_io_types")


@dataclass(frozen=True)
class ONNXQuantizationConfig:
    """Quantises an ONNX model with ModelOpt, calibrated on the stored samples; for int4 on those of one size.

    Attributes:
        precision: ``"int8"``, ``"int4"`` or ``"fp8"``.
        calibration_method: How ranges are found, by ModelOpt's name; None leaves it to the library.
        op_types_to_quantize: ONNX operator types to quantise; None leaves it to the library, which passes over what
            gains nothing, such as products with fewer than 16 columns.
        op_types_to_exclude: ONNX operator types to leave alone; None leaves it to the library.
        high_precision_dtype: What the rest is computed in: ``"fp32"`` (the module's own dtype), ``"fp16"`` or
            ``"bf16"``; None leaves it to the library, which takes fp16. Beside int4 it is the module's own
            dtype always.
    """

    precision: str = "int8"
    calibration_method: str | None = None
    op_types_to_quantize: tuple[str, ...] | None = None
    op_types_to_exclude: tuple[str, ...] | None = None
    high_precision_dtype: str | None = None

    def __post_init__(self) -> None:
        check_choice(self, "precision", tuple(_CALIBRATIONS))
        check_choice(self, "calibration_method", (*_CALIBRATIONS[self.precision], None))
        check_choice(self, "high_precision_dtype", ("fp32", "fp16", "bf16", None))
        for field in ("op_types_to_quantize", "op_types_to_exclude"):
            value = getattr(self, field)
            if value is None:
                continue
            if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
                raise refuse(self, field, "a sequence of operator names or None", value)
            object.__setattr__(self, field, tuple(value))


@dataclass(frozen=True)
class TorchQuantizationConfig:
    """Quantises a copy of the torch module with ModelOpt, calibrated on the stored samples, before it is exported.

    Integers and floats of 8 bits, with one scale for a tensor or a channel, have a form in ONNX; other formats of
    ModelOpt are refused when the engine is built.

    Attributes:
        quantization_config: Name of a config in ``modelopt.torch.quantization``, such as
            ``"FP8_DEFAULT_CFG"`` or ``"INT8_DEFAULT_CFG"``, or a dict of the same form. Names are looked up
            when the engine is built.
    """

    quantization_config: str | dict[str, Any] = "FP8_DEFAULT_CFG"

    def __post_init__(self) -> None:
        value = self.quantization_config
        if isinstance(value, str):
            if not re.fullmatch(r"[A-Z][A-Z0-9_]*_CFG", value):
                raise refuse(
                    self,
                    "quantization_config",
                    "a dict or a name from modelopt.torch.quantization such as 'FP8_DEFAULT_CFG',"
                    " 'INT8_DEFAULT_CFG' or 'INT8_SMOOTHQUANT_CFG'",
                    value,
                )
        else:
            check_options(self, "quantization_config", optional=False)
