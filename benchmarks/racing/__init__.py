"""The race of this broker with Apache Kafka: same client, same ZooKeeper, same machine, in turn."""
