"""The API for users' scripts: the mirror of TensorFlow, the steps of a job, and the importers.

Nothing is imported here, so that ``import tensoropt`` stays free of TensorFlow.
"""
