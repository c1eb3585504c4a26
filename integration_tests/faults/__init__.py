"""Faults on real processes: workloads that write down what they saw, and a cluster to torment.

`workload` is the process that hosts the clients; `producers` and `consumers` are the clients;
`replicas` reads what brokers have on disk; `rig` joins them with a cluster and has the history
judged (`pybroker.testing.history`).
"""
