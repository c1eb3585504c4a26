"""Conformance tests of the request handlers over the wire, which run on three kinds of broker.
`unit_tests/handlers` tests behaviour that is visible only inside the broker.

::

    PYBROKER_TEST_BOOTSTRAP=memory pytest integration_tests/conformance    # in this process
    pytest integration_tests/conformance                                   # in one of its own
    PYBROKER_TEST_BOOTSTRAP=apache pytest integration_tests/conformance    # Apache Kafka

The first command leaves out tests marked `process`, the last command tests marked `ours`. Each test
creates its own topics and groups, because all tests share one broker.
"""
