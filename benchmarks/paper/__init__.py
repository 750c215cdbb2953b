"""The experiments of TensorOpt's section 5, on presets of its cluster."""
