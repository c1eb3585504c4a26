# Part of `_speedups.pyx`: the appending of single records to open batches, compiled.
# `_pure_open_batches.py` describes the classes.

cdef extern from *:
    """
    #define NEW_OBJECT(type, arguments) \
        ((PyTypeObject *) (type))->tp_new((PyTypeObject *) (type), (arguments), NULL)
    """
    object NEW_OBJECT(object type, object arguments)


cdef class RecordPlace:
    cdef readonly object _batch
    cdef readonly int64_t _index
    cdef readonly int64_t _timestamp

    def __init__(self, batch, int64_t index, int64_t timestamp):
        self._batch = batch
        self._index = index
        self._timestamp = timestamp


@cython.final
cdef class OpenBatchAppender:
    cdef dict _routes
    cdef object _budget, _place_type, _check_open, _check_time, _wall_ns, _on_filled
    cdef Py_ssize_t _records_max, _used_max
    cdef bint _has_partitioner

    def __init__(
        self, place_type, dict routes not None, budget, Py_ssize_t used_max, Py_ssize_t records_max, *,
        has_partitioner, check_open, check_time, wall_ns, on_filled,
    ):
        if not issubclass(place_type, RecordPlace):
            raise TypeError(f"{place_type.__name__} is no subclass of RecordPlace")
        self._routes = routes
        self._place_type = place_type
        self._budget = budget
        self._used_max = used_max
        self._records_max = records_max
        self._has_partitioner = has_partitioner
        self._check_open = check_open
        self._check_time = check_time
        self._wall_ns = wall_ns
        self._on_filled = on_filled

    def append(self, topic, value, key, headers, partition, timestamp_ms):
        cdef RecordBuffer records
        cdef RecordPlace place
        cdef dict queues
        cdef int64_t timestamp, index
        cdef Py_ssize_t used, size
        route = self._routes.get(topic)
        if route is None:
            return None
        budget = self._budget
        used = budget.used
        if used > self._used_max or budget.waiting:
            return None
        if self._check_open is not None:
            self._check_open()
        if partition is not None:
            queues = route.queues
            queue = queues.get(partition)
        elif self._has_partitioner:
            return None
        elif key is None:
            queue = route.sticky
        elif type(key) is bytes:
            queues = route.queues
            queue = queues.get(_partition_of(_field_of(key), route.partition_count))
        else:
            return None
        if queue is None:
            return None
        batch = queue.last
        if batch is None or batch.closed:
            return None
        if timestamp_ms is None:
            timestamp = <int64_t> self._wall_ns() // 1_000_000
        else:
            timestamp = self._check_time(timestamp_ms)
        records = batch.records
        index = records._add(timestamp, key, value, headers, self._records_max)
        if index < 0:
            return None
        size = len(records._data)
        used = budget.used
        budget.used = used + size - <Py_ssize_t> batch.memory
        batch.memory = size
        if records.full:
            self._on_filled()
        place = <RecordPlace> NEW_OBJECT(self._place_type, _no_headers)
        place._batch = batch
        place._index = index
        place._timestamp = timestamp
        return place
