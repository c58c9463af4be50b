"""From a module's forward to what other libraries read: an exported program, or an ONNX file."""
