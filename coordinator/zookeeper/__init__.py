"""ZooKeeper: the session, the paths and contents of the nodes, and a broker's registration."""
