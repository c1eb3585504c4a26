"""Fault tests on real processes: workloads that record their operations, and a cluster in which
tests inject faults.

`workload` is the process in which the clients run; `producers` and `consumers` are the clients;
`replicas` reads the files of brokers; `rig` runs them with a cluster and checks the history
(`pybroker.testing.history`).
"""
