"""The command ``tensoropt``: a module for each command, over what the other packages know.

Nothing heavy is imported before a command needs it: ``tensoropt --help`` loads no TensorFlow.
"""
