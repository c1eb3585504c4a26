"""The controller: one broker of the cluster that elects the leader of each partition.

`controller.py` stands for election; `term.py` does the work of an elected controller. The modules
`partitions.py`, `decisions.py`, `leaders.py`, `replicas.py` and `placement.py` decide, without I/O.
`topics.py` runs on every broker.
"""
