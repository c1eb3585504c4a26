"""The replicas of one broker: their roles, high watermarks and ISR changes, the requests that wait
for changes of a replica, and the copying of records from leaders to followers."""
