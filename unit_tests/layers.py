"""The rooms (packages) of the project and the import order inside each room, which `test_tidy.py`
checks.

A line of ORDER names a room and its floors, the lowest floor first, separated by `|`. A floor lists
modules and inner rooms; `*` means all that the line does not name. A module may import modules on
lower floors of its room and of all enclosing rooms, so import cycles are impossible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ORDER: Final = """
pybroker: aligned_timers background bounded_gather clock deferred due_queue errors metrics model
    tool_list yield_every |
    group_lag metrics_text ports | applog
    wire | config records | coordinator storage | compaction |
    replication | handlers | admin client server |
    classic peers spark | broker | host | testing tools | __main__
admin: loop_watch view | config_page group_rows partition_rows readiness service |
    families | exposition | http
applog: log_levels rate_limit | output
broker: * | group_coordination leader_discovery shutdown start_steps | transaction_coordination |
    transaction_verification | app | startup
classic: assignment errors options session_validity subscription | nodes partition_owners | commits
    reading stream | kafka_offsets rebalancing | consumer
client: * | checked connection deliveries fetched leaderless options serializers | accumulator
    deserializers subscription |
    cluster | coordinator_link identity leader_calls produce_requests routes | transactions |
    batch_lookup batch_outcomes bulk coordinator_calls epoch_lookup offset_lookup |
    admin position_check position_lookup ranges sender | appender fetcher range_reader |
    groups producer | reading | consumer
client.admin: calls | cluster configs elections groups log_dirs partitions topics transactions |
    group_offsets | lag | admin
client.assignors: base | balance ranges roundrobin | sticky | choice
client.groups: decisions topics | requests | member offsets | committer | session | group
client.ranges: model | counts cursor validity | fetcher | options
client.transactions: requests states | failures | manager
config: declaration kafka_options kafka_versions listeners properties | broker_options |
    broker_config | topic_config | layered_config without_effect
coordinator: runtime zookeeper | controller groups transactions | offsets
coordinator.controller: election events leaders partitions placement writes | channel
    decisions journal reading replicas topics | deletion partition_expansion policies retries |
    context | broker_notifier initializer receipts | partition_state_machine | services |
    controlled_shutdown deletions log_dirs request_nodes suspects topic_changes | brokers
    isr_notices preferred reassignments | rebalance | term | controller
coordinator.groups: fence memory_limit offset_store options states | calls records | dependencies
    fenced_writes member | group group_nodes | delete effects handover heartbeat mirror overview |
    rebalance | expiry join leave sync | coordinator | service
    transactional_commit
coordinator.offsets: applied_marker classic_nodes commit_watches log_records nodes storage_mark |
    offset_log removal transaction_writes watched_offsets | zookeeper_store | log_store | stores
coordinator.runtime: partitioning refusals shard | replay | live_shard | shards
coordinator.transactions: commits deleted_partitions markers producer_ids states |
    dependencies transaction | decisions entry records | coordinator | service
coordinator.zookeeper: * | first_answer link multi_batcher offset_details schemas session_store |
    config_changes registry session topic_nodes | config_store log_end_reports loss_receipts
compaction: offset_map transactions choice | rewriting | blocks | cleaning | cleaner
handlers: config_entries fetch_sessions metadata_cache metadata_view | context |
    acknowledgement produce_guards | * |
    alter_configs deletion fetch_reading internal_topic list_offsets produce_lane topics
    transactional_offsets transactions |
    controlled_shutdown elect_leaders fetch partition_expansion | dispatch | gate metering
host: child_launcher huge_pages java scheduling several_brokers standard_output supervision |
    child_process process | embedded_zookeeper | run supervisor
peers: * | marker_channel
records: _pure _speedups compression crc32c type_variables | _numpy_columns _pure_key_table
    _pure_arrow_column batch loops refusals | _pure_record_buffer | key_table record record_buffer |
    _pure_consumed _pure_open_batches builder | columns control open_batches validate | consumed
replication: append_rules authority follower isr isr_notifications marker_listener
    purgatory spread watched |
    leader_state | partition | followed_partition high_watermarks leadership_yield opening
    truncation | catch_up | fetcher |
    fetchers | manager | isr_review | * | internal_log
replication.health: log_end_reports step_aside | power_loss unhealthy_replicas
server: acceptor limits receive_buffer refusals request_memory | connection | listener
spark: cuts examples failures java option_values readability | snapshot_document | snapshot_model |
    counting planning splits | options snapshot | rows | batch_reader newest_rows | latest | reading
    | source | spark_session | etl | job
spark.etl: files layout moments progress yaml_file | job_names manifest | store | exactly_once |
    job_model orphans report | decode job_file proposal | sink transform | output run | job |
    command
storage: * | txn_index | checkpoints files index_table producer_state retention | directory
    epoch_file offset_index producer_snapshot time_index | directory_set segment snapshot_files |
    segment_files | undeleted_segments segment_roll segments | durability log_parts lookup |
    epoch_check log recovery | checkpointed chores loader log_table replica_health scrub |
    checkpoint_writer ending moves retention_schedule | opening relocation | manager
testing: cluster_view history loop_thread place relay sockets | cluster_parts proxy | cluster_links
    cluster_waits simulation | cluster | plugin
testing.history: ops values | keyed | model | client_rules eras group_rules keyed_rules loader
    measures stale_leaders | cluster_rules promises | transaction_rules | checker
testing.simulation: disk_faults environment inodes kinds memory_tree replica_files | links loop
    schedule | broker_log fault_sequences machine result shrink zookeeper_wire | disk many swarm tcp
    workload zookeeper_member zookeeper_takeover | cli cluster_record disk_view transport
    zookeeper_session | invariants network zookeeper | broker | cluster watching | simulation view |
    data_loss_budget movers operator | faults | nemesis run_options | run | __main__
testing.simulation.workload: options recorder | clients late_commits transaction_requests |
    api_producer groups producers readers topics | keyed transactions | workload
tools: _cli _stop _topic_lines _verifiable _without_effect _zookeeper_commands container_environment
    start | * | _config_zookeeper _dump_indexes _election_file _group_reset consumer_perf_test
    container delete_records producer_perf_test | _group_options configs dump_log leader_election
    transactions | consumer_groups preferred_replica_election
wire: primitives source | frame schema | decoder encoder messages plain | api | codec fetch_path
    headers produce_path | consumer_protocol
"""

_CLOCKS_AND_SYSTEM: Final = ("asyncio", "socket", "os", "time", "logging")
_INSIDE_A_BROKER: Final = tuple(
    f"pybroker.{room}" for room in ("storage", "coordinator", "replication", "handlers", "server")
)

FORBIDDEN: Final[Mapping[str, tuple[str, ...]]] = {
    "pybroker.wire": _CLOCKS_AND_SYSTEM,
    "pybroker.records": _CLOCKS_AND_SYSTEM,
    "pybroker.storage": ("pybroker.wire.messages",),
    "pybroker.coordinator": ("pybroker.wire.messages",),
    "pybroker.replication": ("pybroker.wire.messages",),
    "pybroker.client": (*_INSIDE_A_BROKER, "kazoo"),
    "pybroker.spark": _INSIDE_A_BROKER,
    "pybroker.testing.history": ("pybroker",),
}
"""Room -> modules that it must not import although they are on a lower floor."""

TIMED_FROM: Final = "client"
TELLS_TIME: Final = frozenset({"pybroker.clock", "pybroker.applog.output"})
"""The only modules below the floor of `client` that may read the clocks of the machine."""
