"""Assignors: they assign the partitions of a group's topics to its members. The leader of the group
computes the assignment for all members."""

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
