"""Job files: what SLURM's ``sbatch`` and Kubernetes' MPI operator start."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from tensoropt.cli.launcher import Launcher, environment

__all__ = ["mpi_job", "sbatch"]


def sbatch(
    name: str, ranks: int, nodes: int, threads: int, program: Sequence[str], launcher: Launcher | None = None
) -> str:
    """A batch file for SLURM.

    Args:
        name: of the job.
        ranks: of all nodes.
        nodes: that they run on, equally many on each.
        threads: and so cores, of each rank.
        program: what each rank runs.
        launcher: of the MPI library that is used; by default Open MPI's.
    """
    plugin = "pmi2" if launcher is not None and launcher.kind == "hydra" else "pmix"
    variables = "".join(f"export {name}={value}\n" for name, value in environment(threads, {}).items())
    return f"""#!/bin/sh
#SBATCH --job-name={shlex.quote(name)}
#SBATCH --nodes={nodes}
#SBATCH --ntasks={ranks}
#SBATCH --ntasks-per-node={ranks // nodes}
#SBATCH --cpus-per-task={threads}
#SBATCH --output=%x-%j.out
# Add --partition, --account, --time and, with graphics cards, --gpus-per-task=1, as your cluster has them.
{variables}exec srun --mpi={plugin} --cpus-per-task={threads} --kill-on-bad-exit=1 {shlex.join(program)}
"""


def mpi_job(name: str, image: str, ranks: int, nodes: int, threads: int, program: Sequence[str]) -> str:
    """An ``MPIJob`` (kubeflow.org/v2beta1), as YAML, for an image with Open MPI 4 or 5 and an SSH server.

    Args:
        name: of the job; what no name in Kubernetes can have becomes dashes.
        image: that has Python, MPI, tensoropt and the script.
        ranks: of all workers.
        nodes: workers, with equally many ranks.
        threads: and so cores, of each rank.
        program: what each rank runs.
    """
    variables = environment(threads, {})
    passed = [word for each in (*variables, "PATH") for word in ("-x", each)]
    # The operator's own settings are those of Open MPI 4.
    hosts = ["--hostfile", "/etc/mpi/hostfile"]
    arguments = ["-n", str(ranks), *hosts, "--allow-run-as-root", "--bind-to", "none", *passed, *program]
    settings = {"PRTE_MCA_prte_keep_fqdn_hostnames": "true", **variables}
    environ = "\n".join(f"            - {{name: {each}, value: {json.dumps(settings[each])}}}" for each in settings)
    return f"""apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: {re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50] or "job"}
spec:
  slotsPerWorker: {ranks // nodes}
  mpiImplementation: OpenMPI
  runPolicy: {{cleanPodPolicy: Running, backoffLimit: 0}}
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec:
          containers:
          - name: launcher
            image: {json.dumps(image)}
            command: [mpirun]
            args: {json.dumps(arguments)}
            env:
{environ}
    Worker:
      replicas: {nodes}
      template:
        spec:
          containers:
          - name: worker
            image: {json.dumps(image)}
            resources: {{limits: {{cpu: {threads * (ranks // nodes)}}}}}
            volumeMounts: [{{name: shared-memory, mountPath: /dev/shm}}]
          volumes: [{{name: shared-memory, emptyDir: {{medium: Memory, sizeLimit: 2Gi}}}}]
"""
