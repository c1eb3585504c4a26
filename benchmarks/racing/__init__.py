"""The race of pybroker with Apache Kafka. Each broker is measured by the same client, with the same
ZooKeeper and on the same machine, one broker after the other."""
