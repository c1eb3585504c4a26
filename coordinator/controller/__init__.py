"""The controller: one broker of the cluster that elects the leader of each partition.

`controller.py` tries to win the controller election. `term.py` does the work of an elected
controller. The modules `partitions.py`, `decisions.py`, `leaders.py`, `replicas.py` and
`placement.py` make its decisions, without I/O. `topics.py` handles topic requests on every broker.
"""
