"""Faults on real processes: workloads that record their operations, and a cluster to inject faults
into.

`workload` is the process that hosts the clients; `producers` and `consumers` are the clients;
`replicas` reads the files of brokers; `rig` combines them with a cluster and has the history
judged (`pybroker.testing.history`).
"""
