"""Steps of networks as graphs of operations, for ONNX and ``torch.export``."""
