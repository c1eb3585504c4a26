"""ZooKeeper as pybroker uses it: the session, the paths, what the nodes hold, a broker's
registration, and the server that runs as a child where no ensemble is given."""
