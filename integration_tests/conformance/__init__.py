"""How handlers behave on the wire, written once for three kinds of broker: in this process, in a
process of its own, and Apache Kafka. `PYBROKER_TEST_BOOTSTRAP` says which."""
