"""Windows to batches: numpy arrays, tensors, pinned memory, the GPU."""
