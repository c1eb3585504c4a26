"""The behaviour of handlers on the wire, one suite for three kinds of broker. Behaviour that only
shows inside the broker is tested in `unit_tests/handlers`.

::

    PYBROKER_TEST_BOOTSTRAP=memory pytest integration_tests/conformance    # in this process
    pytest integration_tests/conformance                                   # in one of its own
    PYBROKER_TEST_BOOTSTRAP=apache pytest integration_tests/conformance    # Apache Kafka

The first leaves out tests marked `process`, the last tests marked `ours`. A test creates topics
and groups of its own, because all share one broker.
"""
