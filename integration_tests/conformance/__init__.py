"""How handlers behave on the wire, written once for three kinds of broker. What only a hand on the
inside can show is tested in `unit_tests/handlers`.

::

    PYBROKER_TEST_BOOTSTRAP=memory pytest integration_tests/conformance    # in this process
    pytest integration_tests/conformance                                   # in one of its own
    PYBROKER_TEST_BOOTSTRAP=apache pytest integration_tests/conformance    # Apache Kafka

Tests marked `process` are left out of the first, tests marked `ours` of the last. A test makes
topics and groups of its own: all share one broker.
"""
