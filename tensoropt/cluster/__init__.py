"""Clusters: levels of links and devices, measured or described, and what collectives cost on them."""

from tensoropt.cluster.collective_profile import COLLECTIVE_KINDS, CollectiveProfile, ProfileEntry
from tensoropt.cluster.collectives import CollectiveModel
from tensoropt.cluster.device import Device
from tensoropt.cluster.presets import PRESETS, preset
from tensoropt.cluster.schema import topology_schema
from tensoropt.cluster.topology import Level, Topology

__all__ = [
    "COLLECTIVE_KINDS",
    "PRESETS",
    "CollectiveModel",
    "CollectiveProfile",
    "Device",
    "Level",
    "ProfileEntry",
    "Topology",
    "preset",
    "topology_schema",
]
