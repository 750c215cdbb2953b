"""Collectives engines: one small interface, and what fills it (MPI op in C++, mpi4py, Horovod)."""
