"""The controller: one broker of the cluster that decides who leads each partition.

`controller.py` is the way in (who reigns, and when), `reign.py` what a reigning controller does.
Deciding is pure (`partitions.py`, `leaders.py`, `replicas.py`, `placement.py`); reading and writing
ZooKeeper is in `reading.py`, `writes.py`, `transitions.py`, talking to brokers in `channel.py`.
`topics.py` is for every broker: creating a topic needs no controller.
"""
