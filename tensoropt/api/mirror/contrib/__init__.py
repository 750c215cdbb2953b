"""What the mirror has of TensorFlow's removed ``tf.contrib``: tf_slim where that has it, our own code elsewhere."""
