"""The stages of the integration tests: the stage of each file, and the tests that run only in `make
test-all`, not in `make test`.

`make test-all STAGE=spark` runs one complete stage. `make test` runs all stages together, without
the tests of LONG and with only the cases of FEW: the rest covers every API, tool, family of
clients and promise once. The left out tests repeat such a proof with another client, version or
moment, or test a rare and slow subject.

The tests run in several processes. Those of a file run in one process, as they share the brokers
and Java machines of their module. The files of a stage in LANES run in at most that number of
processes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent

STAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "spark": (
        "test_spark_etl",
        "test_spark_hostile",
        "test_spark_connector",
        "test_spark_source",
        "test_spark_examples",
        "test_spark_etl_command",
        "test_spark_sessions",
    ),
    "faults": (
        "test_faults_kills",
        "test_faults_groups",
        "test_faults_links",
        "test_faults_pauses",
        "test_faults_zookeeper",
        "test_faults_flaky",
        "test_faults_elections",
        "test_faults_disks",
        "test_faults_disk_full",
        "test_faults_damage",
        "test_faults_power",
        "test_faults_sync",
        "test_faults_clocks",
        "test_faults_random",
        "test_transaction_faults",
        "test_transaction_faults_clients",
        "test_transaction_faults_offsets",
    ),
    "spark-faults": (
        "test_faults_spark_jobs",
        "test_faults_spark",
    ),
    "groups": (
        "test_group_clients",
        "test_own_group_faults",
        "test_offsets",
        "test_groups",
        "test_own_groups",
        "test_classic_beside_apache",
        "test_groups_beside_apache",
        "test_classic_consumer",
        "test_coordinators",
        "test_hostile_groups",
        "test_group_lag",
    ),
    "packaging": (
        "test_packaging",
        "test_documents",
        "test_sample_files",
    ),
    "tools": (
        "test_compatibility",
        "test_group_tools",
        "test_dump_tool",
        "test_transaction_log",
        "test_transaction_admin",
        "test_transaction_admin_clusters",
        "test_tools",
        "test_old_tools",
        "test_verifiable_tools",
        "test_dump_log",
        "test_configs",
        "test_admin_tools",
        "test_admin_clients",
    ),
    "brokers": (
        "test_log_dirs",
        "test_elections",
        "test_start",
        "test_several_brokers",
        "test_changing_brokers",
        "test_hostile_frames",
        "test_lost_disks",
        "test_promises",
        "test_power_loss",
        "test_http",
        "test_sessions",
        "test_limits",
        "test_damaged_nodes",
        "test_topic_ids",
        "test_bombs",
        "test_registry",
        "test_embedded_zookeeper",
        "test_coord_contract",
        "test_control_messages",
        "test_network_faults",
        "test_testing_cluster",
        "test_standstill",
        "test_pytest_plugin",
    ),
    "clients": (
        "test_ranges_beside_apache",
        "test_compaction_beside_apache",
        "test_compaction",
        "test_clients",
        "test_ranges",
        "test_real_input",
        "test_consumer_truncation",
        "test_transformers",
        "test_transactions_beside_apache",
        "test_transactions",
        "test_other_transactions",
        "test_transactions_in_log",
        "test_hostile_transactions",
        "test_own_client",
        "test_own_transactions",
        "test_streams",
        "test_connect",
        "test_types",
    ),
    "conformance": ("conformance", "test_sessions_beside_apache", "test_fetch_session_clients"),
    "docker": ("test_docker",),
}
"""Stage -> its files (without `.py`) and folders. Slow stages and files come first, so that no
process starts a slow file when the other processes have finished.
"""

LANES: Final[Mapping[str, int]] = {
    "spark": 1,
    "spark-faults": 1,
    "faults": len(os.sched_getaffinity(0)),
}
"""Stage -> its limited number of lanes. The files of a lane run one after the other, because
Spark's files share a session, and a cluster under load needs a core.
"""

LONG: Final[Mapping[str, tuple[str, ...]]] = {
    "test_changing_brokers": ("test_pybroker_recovers_a_log_of_a_killed_apache_broker",),
    "test_classic_consumer": ("test_members_join_leave_die_and_lose_their_sessions_under_load",),
    "test_compatibility": ("test_the_examples_of_the_page_of_tools_run",),
    "test_connect": ("*",),
    "test_configs": ("test_names_types_and_defaults_are_apaches",),
    "test_coordinators": ("test_a_follower_that_dies_does_not_disturb_the_coordinator",),
    "test_docker": ("*",),
    "test_documents": (
        "test_the_simulations_of_the_page_about_testing",
        "test_the_tests_of_the_page_about_testing",
    ),
    "test_dump_log": ("test_apache_reads_our_files_after_a_stop", "test_a_torn_tail_is_truncated*"),
    "test_dump_tool": ("test_indexes_that_do_not_fit_markers_and_strange_files",),
    "test_elections": (
        "test_a_stop_hands_a_thousand_partitions_over",
        "test_kafka_python_elects",
        "test_confluent_kafka_elects",
    ),
    "test_faults_clocks": ("*",),
    "test_faults_damage": ("test_flipped_bits_while_a_broker_is_down", "test_torn_tails"),
    "test_faults_disk_full": ("test_the_disk_of_a_coordinator_is_full", "test_all_disks_are_full"),
    "test_faults_disks": (
        "test_power_loss_of_the_last_in_sync_replica",
        "test_late_isr_expand_of_a_wiped_follower",
    ),
    "test_faults_elections": ("test_unclean_election_off",),
    "test_faults_flaky": ("test_flaky_links", "test_zookeeper_connection_lost_during_a_write"),
    "test_faults_groups": (
        "test_coordinator_killed_under_a_stable_group",
        "test_coordinator_paused_and_resumed",
        "test_coordinator_cut_from_zookeeper",
        "test_sessions_of_coordinators_expire",
        "test_brokers_are_restarted_in_turn",
    ),
    "test_faults_kills": (
        "test_kill9_controller_loop",
        "test_kill9_all_at_once",
        "test_high_watermark_lag_restart",
    ),
    "test_faults_links": (
        "test_leader_cut_from_peers",
        "test_leader_cut_from_zookeeper",
        "test_isolate_and_heal",
        "test_bridge_partition",
        "test_freeze_follower_under_load",
        "test_clients_of_an_isolated_leader_find_the_new_leaders",
    ),
    "test_faults_pauses": ("test_session_expire_storm", "test_preferred_leader_churn"),
    "test_faults_power": ("*",),
    "test_faults_random": ("*",),
    "test_faults_spark": ("*",),
    "test_faults_spark_jobs": ("*",),
    "test_faults_sync": ("test_a_slow_disk", "test_a_failed_sync_of_one_directory_of_three"),
    "test_faults_zookeeper": (
        "test_zookeeper_member_loss",
        "test_zookeeper_follower_cut_off",
    ),
    "test_transaction_faults_clients": ("*",),
    "test_transaction_faults_offsets": ("*",),
    "test_transaction_faults": (
        "test_leader_of_written_partitions_killed_in_each_state",
        "test_leader_that_lacks_markers_killed_in_each_state",
        "test_client_killed_in_each_state",
        "test_session_of_coordinator_ends_in_each_state",
    ),
    "test_groups": ("test_a_restarted_broker_loads_its_groups",),
    "test_hostile_frames": ("test_the_same_seed_makes_the_same_frames",),
    "test_log_dirs": (
        "test_a_directory_that_cannot_be_used_at_the_start_is_offline",
        "test_a_move_ends_with_its_topic",
    ),
    "test_lost_disks": ("test_an_accepted_loss_does_not_lose_records_of_other_replicas",),
    "test_offsets": ("test_zookeeper_stops_during_a_commit",),
    "test_old_tools": ("test_an_election_that_did_not_happen",),
    "test_packaging": ("test_spark_finds_the_source_of_an_installed_wheel",),
    "test_ranges": ("test_a_read_waits_for_a_restarted_broker",),
    "test_ranges_beside_apache": (
        "test_compaction_since_the_snapshot_is_reported",
        "test_a_job_run_is_not_repeated_after_compaction",
    ),
    "test_several_brokers": (
        "test_the_data_of_a_single_broker_are_refused_and_those_of_several_too",
        "test_the_brokers_start_again_with_the_same_data",
        "test_a_broker_that_cannot_start_stops_all_with_its_message",
        "test_lines_of_brokers_stay_json_and_name_their_broker",
        "test_an_external_ensemble_is_used_and_ids_are_generated",
        "test_the_readiness_of_all_brokers_is_reported",
    ),
    "test_spark_connector": ("test_stream*", "test_batch_reports_deleted_records"),
    "test_spark_etl": (
        "test_a_plan_that_does_not_continue_the_last_commit_is_refused",
        "test_a_run_that_cannot_be_repeated_keeps_its_rows",
        "test_a_timestamp_may_end_a_run",
        "test_a_new_plan_starts_after_the_offsets_of_an_earlier_plan",
        "test_values_of_partitions_are_read_as_they_were",
        "test_a_long_backlog_is_read_in_several_runs",
        "test_a_table_whose_columns_have_changed_is_refused",
        "test_times_in_names_of_folders_mean_the_same_everywhere",
    ),
    "test_spark_examples": ("test_a_job_is_started_by", "test_flights_are_files_by_day"),
    "test_spark_sessions": ("test_spark_uses_the_java_of_the_package_if_the_path_has_none",),
    "test_spark_source": (
        "test_large_ranges_are_cut_between_batches",
        "test_a_snapshot_is_read_as_text_or_from_its_file",
    ),
    "test_start": (
        "test_a_broker_id_in_use_is_reported_and_its_owner_is_not_affected",
        "test_a_broker_restarts_at_once_after_its_zookeeper_died_first",
        "test_a_broker_restarts_at_once_with_an_external_ensemble",
        "test_advertising_localhost_on_a_public_listener_logs_a_warning",
    ),
    "test_transactions_beside_apache": ("*",),
    "test_transformers": ("test_each_record_is_transformed_once_under_many_kills",),
    "test_testing_cluster": (
        "test_the_early_end_of_a_started_broker_is_reported",
        "test_a_temporary_directory_is_kept_only_after_a_failure",
        "test_modules_of_the_user_do_not_replace_those_of_python",
    ),
}
"""File -> its tests that run in `make test-all` only. `*` at the end of a name matches any
suffix.
"""

FEW: Final[Mapping[str, tuple[str, ...]]] = {
    "test_streams::test_words_are_counted_exactly_once": ("1-MB",),
    "test_offsets::test_a_coordinator_killed_in_mid_commit": ("kafka",),
    "test_own_group_faults::test_a_restarted_coordinator_causes_no_rebalance": ("ours",),
    "test_offsets::test_a_resumed_old_coordinator_commits_nothing": ("zookeeper",),
    "test_own_groups::test_a_member_of_another_client_is_in_the_same_group": (
        "ours-confluent-kafka-cooperative-sticky-ours-leads",
        "ours-kafka-python-range-theirs-leads",
        "ours-java-cooperative-sticky-theirs-leads",
        "apache-java-sticky-ours-leads",
    ),
    "test_groups::test_a_static_member_rejoins_without_a_rebalance": ("confluent-kafka",),
    "test_own_group_faults::test_a_restarted_static_member_causes_no_rebalance": ("ours",),
    "test_group_clients::test_a_restarted_static_member_disturbs_no_other_member": ("pybroker",),
    "test_old_tools::test_the_old_tool_creates_changes_and_deletes_a_topic": ("0.9.0.1",),
    "test_packaging::test_archives_have_every_module_also_behind_symlinks": ("sdist",),
    "test_packaging::test_an_archive_installs_and_works_away_from_the_sources": ("wheel",),
    "test_classic_beside_apache::test_consumers_of_both_kinds_commit_offsets_to_the_coordinator": (
        "true-0.9.0.1",
    ),
    "test_classic_beside_apache::test_consumers_of_both_kinds_share_a_group": ("1.1.1-range",),
    "test_clients::test_client_finds_offsets_by_timestamp": (
        "confluent-kafka-lz4",
        "kafka-python-gzip",
        "aiokafka-zstd",
        "pybroker-zstd",
        "kcat-none",
        "java-snappy",
    ),
    "test_clients::test_client_reads_back_what_it_wrote": (
        "confluent-kafka-zstd-idempotent",
        "kafka-python-snappy-idempotent",
        "aiokafka-lz4-plain",
        "pybroker-none-plain",
        "kcat-gzip-idempotent",
        "java-snappy-idempotent",
    ),
    "test_faults_groups::test_coordinator_killed_while_members_join_and_leave": ("zookeeper",),
    "test_faults_sync::test_fsync_error": ("1",),
    "test_old_tools::test_the_old_tool_shows_topics_of_our_tool": ("0.9.0.1",),
    "test_classic_beside_apache::test_kafkas_tools_know_our_members_offsets_and_lag": ("0.9.0.1",),
    "test_log_dirs::test_kill_9_during_a_move_loses_nothing": ("named",),
    "test_groups_beside_apache::test_members_get_the_answers_of_apache": ("0",),
    "test_own_groups::test_members_come_and_go_and_every_record_is_read_once": (
        "ours-range",
        "ours-cooperative-sticky",
        "apache-sticky",
    ),
    "test_group_clients::test_members_come_go_freeze_and_die": (
        "confluent-static",
        "kafkajs",
        "java-cooperative",
    ),
    "test_own_group_faults::test_other_members_take_over_from_a_killed_member": (
        "ours-cooperative-sticky",
    ),
    "test_old_tools::test_the_old_tool_elects_preferred_replicas": ("2.8.2",),
    "test_real_input::test_real_records_survive_kill_9": ("confluent-kafka",),
    "test_faults_groups::test_sessions_for_offsets_end_in_mid_commit": ("zookeeper",),
    "test_sessions_beside_apache::test_fetch_sessions_get_the_answers_of_apache": ("0",),
    "test_groups::test_a_killed_coordinator_causes_no_rebalance": ("aiokafka",),
    "test_offsets::test_the_offsets_of_an_apache_broker_are_taken_over": ("kafka",),
    "test_own_group_faults::test_two_processes_with_one_instance_id_exclude_each_other": ("ours",),
    "test_verifiable_tools::test_consumers_print_the_same_events": ("ours",),
    "test_verifiable_tools::test_producers_print_the_same_events": (
        "ours-words0",
        "ours-words1",
        "apache-words0",
    ),
    "test_own_group_faults::test_a_slow_member_is_removed_and_cannot_commit": ("ours",),
}
"""Parametrized test -> its cases (the text between the brackets) that run in `make test`. Other
cases run in `make test-all` only.
"""

_STAGE_OF: Final = {file: stage for stage, files in STAGES.items() for file in files}
_ORDER: Final = {file: number for number, file in enumerate(_STAGE_OF)}


def stage_of(path: Path) -> str:
    """Return the stage of a test file.

    Raises LookupError if the file belongs to no stage.
    """
    return _STAGE_OF[_entry(path)]


def order_of(path: Path) -> int:
    """Return the rank of a file. Files with smaller numbers begin earlier."""
    return _ORDER[_entry(path)]


def group_of(path: Path) -> str:
    """Return the group of a file. Tests of one group run one after the other in one process."""
    if lanes := LANES.get(stage := stage_of(path)):
        return f"{stage}-{order_of(path) % lanes}"
    return _file(path)


def _file(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").as_posix()


def _entry(path: Path) -> str:
    """Return the entry of the file, or of its folder, in STAGES."""
    entry = _file(path).partition("/")[0]
    if entry not in _STAGE_OF:
        raise LookupError(f"{path.name} belongs to no stage: add it to integration_tests/stages.py")
    return entry


def is_long(path: Path, test: str) -> bool:
    """Return whether the test runs in `make test-all` only."""
    name, _, case = test.removesuffix("]").partition("[")
    if any(_fits(pattern, name) for pattern in LONG.get(_file(path), ())):
        return True
    return case not in FEW.get(f"{_file(path)}::{name}", (case,))


def stale_rows(tests: Iterable[tuple[Path, str]]) -> list[str]:
    """Return the rows of LONG and FEW that match none of `tests`, which are all tests of their
    files.
    """
    names: dict[str, set[str]] = {}
    cases: dict[str, set[str]] = {}
    for path, test in tests:
        name, _, case = test.removesuffix("]").partition("[")
        names.setdefault(_file(path), set()).add(name)
        cases.setdefault(f"{_file(path)}::{name}", set()).add(case)
    return [
        f"LONG: {file}: {pattern}"
        for file in LONG.keys() & names.keys()
        for pattern in LONG[file]
        if not any(_fits(pattern, name) for name in names[file])
    ] + [
        f"FEW: {test}[{case}]"
        for test, wanted in FEW.items()
        if test.partition("::")[0] in names
        for case in wanted
        if case not in cases.get(test, ())
    ]


@functools.cache
def _fits(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
