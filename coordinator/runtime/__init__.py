"""What group and transaction coordinators share: partitions of an internal topic whose leaders keep
state in memory, every change of which is a record first."""
