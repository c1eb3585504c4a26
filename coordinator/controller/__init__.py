"""The controller: one broker of the cluster that elects the leader of each partition.

`controller.py` is the entry: it stands for election. `term.py` is the work of an elected one.
Decisions are pure (`partitions.py`, `leaders.py`, `replicas.py`, `placement.py`). `reading.py`,
`writes.py` and `partition_state_machine.py` read and write ZooKeeper; `channel.py` is the way to
the brokers.
`topics.py` is for every broker: creating a topic needs no controller.
"""
