"""Cluster coordination: the ZooKeeper adapter, the controller, and the coordinators of groups and
transactions."""
