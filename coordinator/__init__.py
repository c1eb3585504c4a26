"""What a cluster agrees on: the ZooKeeper adapter, the controller, and (later layers) groups and
transactions."""
