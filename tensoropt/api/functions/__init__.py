"""``tensoropt.function``: a function of TensorFlow's that is traced, planned and run on all ranks."""
