"""Compares pybroker's client with aiokafka and confluent-kafka.

One process runs all clients, one after the other, against one pybroker broker with its own
ZooKeeper. In each round every way of a row has its turn, so that a change of the machine's speed
meets all of them. A row prints the rate of each way, as the median of all rounds with the lowest
and the highest value. Then it prints its ratios: each is computed within every round, and the
median is compared with the goal.

`rows.py` has the frame, and `reads.py` the rows of consumers. `__main__.py` has the list of rows.
"""
