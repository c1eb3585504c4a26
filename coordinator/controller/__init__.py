"""The controller: one broker of the cluster that elects the leader of each partition.

`controller.py` stands for election; `term.py` does the work of an elected controller. Decisions are
pure (`partitions.py`, `leaders.py`, `replicas.py`, `placement.py`). `channel.py` sends requests to
the brokers. Every broker uses `topics.py`: creating a topic needs no controller.
"""
