"""Divides the partitions of a group's topics among its members. Pure: values in, values out. The
member that the coordinator made leader computes it for all."""

from pybroker.client.assignors.base import Assignments, Assignor, GroupMember
from pybroker.client.assignors.choice import ASSIGNOR_NAMES, assignor_name, make_assignor

__all__ = [
    "ASSIGNOR_NAMES",
    "Assignments",
    "Assignor",
    "GroupMember",
    "assignor_name",
    "make_assignor",
]
