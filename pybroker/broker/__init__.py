"""One broker: creates its components, starts and stops them, and registers the broker in
ZooKeeper.
"""
