"""Histories. A history has the operations of clients and brokers during a run with faults. It is
recorded during the run, and checked for violations afterwards.

`ops` defines the log that each process of a workload writes, and `values` the records that it
produces. `loader` reads all logs of a run into one `model.History`. `checker.check` returns every
violation of a rule; the rules are in `client_rules`, `group_rules`, `cluster_rules` and `promises`.
`eras` handles recreated topics and admitted losses. `measures` computes availability. No module
here imports the broker: the checker shares no code with the system under test.
"""
