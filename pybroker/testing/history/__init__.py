"""Histories: what clients and brokers did during a fault, written down and judged afterwards.

`ops` is the log that each process of a workload writes, `values` what its records hold, `loader`
reads all logs of a run into one `model.History`, and `checker.check` names everything in it that
must not be: `client_rules`, `group_rules`, `cluster_rules` and `promises` are the rules, `eras`
tells what binds whom where topics come and go. `measures` reads availability off a history. Nothing
here imports the broker: the judge shares no code with whom it judges.
"""
