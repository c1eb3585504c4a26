"""The race of pybroker with Apache Kafka: the same client, the same ZooKeeper and the same machine,
one broker after the other."""
