"""The errors of the project. The class of an error tells the code that catches it how to react."""

from __future__ import annotations

import enum
from typing import Final


class ErrorCode(enum.IntEnum):
    """Kafka's error codes (protocol guide, "Error Codes"). If `retriable` is True, clients retry
    the request."""

    retriable: bool
    text: str

    def __new__(cls, number: int, retriable: bool, text: str) -> ErrorCode:
        member = int.__new__(cls, number)
        member._value_ = number
        member.retriable = retriable
        member.text = text
        return member

    # fmt: off
    UNKNOWN_SERVER_ERROR = (-1, False, "An unexpected error in the broker; its log has the details.")
    NONE = (0, False, "")
    OFFSET_OUT_OF_RANGE = (1, False, "The offset is outside the range of offsets in this partition.")
    CORRUPT_MESSAGE = (2, True, "The batch does not match its CRC, or its fields contradict each other.")
    UNKNOWN_TOPIC_OR_PARTITION = (3, True, "This broker does not host that topic or partition.")
    INVALID_FETCH_SIZE = (4, False, "The fetch size is not valid.")
    LEADER_NOT_AVAILABLE = (5, True, "The partition has no leader at the moment.")
    NOT_LEADER_OR_FOLLOWER = (6, True, "This broker is not the leader (or, for reads, a follower) of the partition.")
    REQUEST_TIMED_OUT = (7, True, "The request was not completed within its time limit.")
    BROKER_NOT_AVAILABLE = (8, False, "The broker is not available.")
    REPLICA_NOT_AVAILABLE = (9, True, "The replica is not available on this broker.")
    MESSAGE_TOO_LARGE = (10, False, "The batch is larger than max.message.bytes allows.")
    STALE_CONTROLLER_EPOCH = (11, False, "The command comes from a controller that has been replaced.")
    OFFSET_METADATA_TOO_LARGE = (12, False, "The metadata of the offset commit is too large.")
    NETWORK_EXCEPTION = (13, True, "The connection was lost before the response arrived.")
    COORDINATOR_LOAD_IN_PROGRESS = (14, True, "The coordinator is still loading its state.")
    COORDINATOR_NOT_AVAILABLE = (15, True, "The coordinator is not available.")
    NOT_COORDINATOR = (16, True, "This broker is not the coordinator of that group or transaction.")
    INVALID_TOPIC_EXCEPTION = (17, False, "The topic name is not valid, or the operation is not allowed on this topic.")
    RECORD_LIST_TOO_LARGE = (18, False, "The batch is larger than a log segment may be.")
    NOT_ENOUGH_REPLICAS = (19, True, "Fewer replicas are in sync than min.insync.replicas requires; nothing was written.")
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (20, True, "The batch was written, but too few replicas stayed in sync.")
    INVALID_REQUIRED_ACKS = (21, False, "acks must be -1, 0 or 1.")
    ILLEGAL_GENERATION = (22, False, "The generation is not the current one of the group.")
    INCONSISTENT_GROUP_PROTOCOL = (23, False, "The member's protocols do not fit those of the group.")
    INVALID_GROUP_ID = (24, False, "The group id is not valid.")
    UNKNOWN_MEMBER_ID = (25, False, "The group has no such member.")
    INVALID_SESSION_TIMEOUT = (26, False, "The session timeout is outside the range that the broker allows.")
    REBALANCE_IN_PROGRESS = (27, False, "The group is rebalancing; the member should join again.")
    INVALID_COMMIT_OFFSET_SIZE = (28, False, "The committed offset is too large to store.")
    TOPIC_AUTHORIZATION_FAILED = (29, False, "Not authorized for this topic.")
    GROUP_AUTHORIZATION_FAILED = (30, False, "Not authorized for this group.")
    CLUSTER_AUTHORIZATION_FAILED = (31, False, "Not authorized for the cluster.")
    INVALID_TIMESTAMP = (32, False, "A record's timestamp is outside the range that the topic allows.")
    UNSUPPORTED_SASL_MECHANISM = (33, False, "The broker does not offer that SASL mechanism.")
    ILLEGAL_SASL_STATE = (34, False, "The request is not allowed in this state of authentication.")
    UNSUPPORTED_VERSION = (35, False, "The broker does not support that version of the API.")
    TOPIC_ALREADY_EXISTS = (36, False, "A topic of this name exists already.")
    INVALID_PARTITIONS = (37, False, "The number of partitions is not valid.")
    INVALID_REPLICATION_FACTOR = (38, False, "The replication factor is below 1 or above the number of live brokers.")
    INVALID_REPLICA_ASSIGNMENT = (39, False, "The replica assignment is not valid.")
    INVALID_CONFIG = (40, False, "The configuration is not valid.")
    NOT_CONTROLLER = (41, True, "This broker is not the controller.")
    INVALID_REQUEST = (42, False, "The request contradicts itself or this version of the API.")
    UNSUPPORTED_FOR_MESSAGE_FORMAT = (43, False, "The message format of the topic does not support this request.")
    POLICY_VIOLATION = (44, False, "A policy of the cluster forbids this.")
    OUT_OF_ORDER_SEQUENCE_NUMBER = (45, False, "The sequence number of the batch does not follow that of the producer's last batch.")
    DUPLICATE_SEQUENCE_NUMBER = (46, False, "The producer has written a batch with this sequence number already.")
    INVALID_PRODUCER_EPOCH = (47, False, "The producer's epoch is old: another producer with its id has a newer epoch.")
    INVALID_TXN_STATE = (48, False, "The transaction is in a state that does not allow this.")
    INVALID_PRODUCER_ID_MAPPING = (49, False, "The producer id does not belong to the transactional id.")
    INVALID_TRANSACTION_TIMEOUT = (50, False, "The transaction timeout is larger than the broker allows.")
    CONCURRENT_TRANSACTIONS = (51, True, "Another operation of this transactional id is still in progress.")
    TRANSACTION_COORDINATOR_FENCED = (52, False, "The transaction coordinator has been replaced.")
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = (53, False, "Not authorized for this transactional id.")
    SECURITY_DISABLED = (54, False, "No authorizer is configured on the broker.")
    OPERATION_NOT_ATTEMPTED = (55, False, "The operation was not attempted.")
    KAFKA_STORAGE_ERROR = (56, True, "The disk that holds the partition failed.")
    LOG_DIR_NOT_FOUND = (57, False, "The broker has no such log directory.")
    SASL_AUTHENTICATION_FAILED = (58, False, "Authentication failed.")
    UNKNOWN_PRODUCER_ID = (59, False, "The broker has no state of this producer id.")
    REASSIGNMENT_IN_PROGRESS = (60, False, "A reassignment of the partition is in progress.")
    DELEGATION_TOKEN_AUTH_DISABLED = (61, False, "Delegation tokens are not enabled.")
    DELEGATION_TOKEN_NOT_FOUND = (62, False, "There is no such delegation token.")
    DELEGATION_TOKEN_OWNER_MISMATCH = (63, False, "The principal is neither owner nor renewer of the token.")
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (64, False, "Delegation tokens are not allowed on this connection.")
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = (65, False, "Not authorized for this delegation token.")
    DELEGATION_TOKEN_EXPIRED = (66, False, "The delegation token has expired.")
    INVALID_PRINCIPAL_TYPE = (67, False, "The principal type is not supported.")
    NON_EMPTY_GROUP = (68, False, "The group still has members.")
    GROUP_ID_NOT_FOUND = (69, False, "The group does not exist.")
    FETCH_SESSION_ID_NOT_FOUND = (70, True, "The fetch session is not known.")
    INVALID_FETCH_SESSION_EPOCH = (71, True, "The fetch session epoch is not the expected one.")
    LISTENER_NOT_FOUND = (72, True, "The leader has no listener of the name that this connection uses.")
    TOPIC_DELETION_DISABLED = (73, False, "Topic deletion is disabled (delete.topic.enable=false).")
    FENCED_LEADER_EPOCH = (74, True, "The leader epoch in the request is older than the broker's.")
    UNKNOWN_LEADER_EPOCH = (75, True, "The leader epoch in the request is newer than the broker's.")
    UNSUPPORTED_COMPRESSION_TYPE = (76, False, "The compression codec does not fit this version of the API.")
    STALE_BROKER_EPOCH = (77, False, "The command is meant for an earlier incarnation of this broker.")
    OFFSET_NOT_AVAILABLE = (78, True, "The new leader does not know the high watermark of the partition yet.")
    MEMBER_ID_REQUIRED = (79, False, "The member must join again with the id that it was given.")
    PREFERRED_LEADER_NOT_AVAILABLE = (80, True, "The preferred leader is not available.")
    GROUP_MAX_SIZE_REACHED = (81, False, "The group has as many members as it may have.")
    FENCED_INSTANCE_ID = (82, False, "Another member has taken over this group.instance.id.")
    ELIGIBLE_LEADERS_NOT_AVAILABLE = (83, True, "No replica that may lead is available.")
    ELECTION_NOT_NEEDED = (84, True, "The partition needs no leader election.")
    NO_REASSIGNMENT_IN_PROGRESS = (85, False, "No reassignment of the partition is in progress.")
    GROUP_SUBSCRIBED_TO_TOPIC = (86, False, "The group is subscribed to the topic whose offsets are to be deleted.")
    INVALID_RECORD = (87, False, "The batch breaks a rule of the topic or of the record format.")
    UNSTABLE_OFFSET_COMMIT = (88, True, "A transaction that commits these offsets is still open.")
    THROTTLING_QUOTA_EXCEEDED = (89, True, "The quota for this operation is exhausted.")
    PRODUCER_FENCED = (90, False, "A newer producer uses the same transactional id.")
    RESOURCE_NOT_FOUND = (91, False, "The resource does not exist.")
    DUPLICATE_RESOURCE = (92, False, "The resource is named twice.")
    UNACCEPTABLE_CREDENTIAL = (93, False, "The credential does not meet the requirements.")
    INCONSISTENT_VOTER_SET = (94, False, "The set of voters in the request is not that of the quorum.")
    INVALID_UPDATE_VERSION = (95, False, "The version in the request is not the current version of the item to update.")
    FEATURE_UPDATE_FAILED = (96, False, "The features could not be updated.")
    PRINCIPAL_DESERIALIZATION_FAILURE = (97, False, "The forwarded principal could not be read.")
    SNAPSHOT_NOT_FOUND = (98, False, "The snapshot does not exist.")
    POSITION_OUT_OF_RANGE = (99, False, "The position is outside the snapshot.")
    UNKNOWN_TOPIC_ID = (100, True, "No topic has this id.")
    DUPLICATE_BROKER_REGISTRATION = (101, False, "The broker id is registered already.")
    BROKER_ID_NOT_REGISTERED = (102, False, "The broker id is not registered.")
    INCONSISTENT_TOPIC_ID = (103, True, "The topic id in the request is not that of the topic.")
    INCONSISTENT_CLUSTER_ID = (104, False, "The cluster id in the request is not that of this cluster.")
    TRANSACTIONAL_ID_NOT_FOUND = (105, False, "The transactional id is not known.")
    FETCH_SESSION_TOPIC_ID_ERROR = (106, True, "The fetch session mixes topic names and topic ids.")
    MISMATCHED_ENDPOINT_TYPE = (114, False, "The request was sent to an endpoint of another type.")
    UNSUPPORTED_ENDPOINT_TYPE = (115, False, "There is no such type of endpoint.")
    # fmt: on


class PybrokerError(Exception):
    """The base class of all errors that the project raises on purpose."""


DETAIL_LENGTH_MAX: Final = 4000
"""The maximum length of `detail` in characters. A detail may repeat a text of the client, and the
protocol allows at most 32,767 bytes."""


class BrokerError(PybrokerError):
    """A request, or one item of it, fails with one of Kafka's error codes. The client receives
    `code` and, if the response has a field for a message, `detail`."""

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        if len(detail) > DETAIL_LENGTH_MAX:
            detail = f"{detail[:DETAIL_LENGTH_MAX]}..."
        super().__init__(f"{code.name}: {detail or code.text}")
        self.code = code
        self.detail = detail or code.text


class MalformedInput(PybrokerError):
    """The peer sent bytes that are not a valid message. Its connection is closed."""


class CloseConnection(PybrokerError):
    """A request gets no response: its connection is closed instead. The message says why."""


class IllegalMove(PybrokerError):
    """A state machine does not allow this transition. The cause is a bug, or in the controller an
    outdated view of the cluster. The controller then reads the cluster's state again."""


class CorruptionError(PybrokerError):
    """Stored bytes are damaged. The message names the file, the position, and the expected
    content."""


class StorageError(PybrokerError):
    """The disk refused an operation, because it is full, read-only or broken. The message names the
    path and the operation."""


class DiskFull(StorageError):
    """The disk is full, and nothing was written. The caller may retry when there is free space."""


class ConfigError(PybrokerError):
    """Values of the configuration are invalid. `faults` has one sentence for each invalid value."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


class StartupError(PybrokerError):
    """The broker cannot start and has changed nothing. The message is one line: what is wrong, and
    what to change. The exit code is 1."""


class CoordError(PybrokerError):
    """The base class of the errors that the coordination service (ZooKeeper) returns."""


class MalformedNode(PybrokerError):
    """A node in ZooKeeper does not have the expected format. The message names the path and the
    expected content. Nothing was changed."""


class NodeExists(CoordError):
    """The node to create exists already. The operation was not applied."""


class NoNode(CoordError):
    """The node, or the parent of the node to create, does not exist. The operation was not
    applied."""


class BadVersion(CoordError):
    """The node does not have the required version. The operation was not applied."""


class NotEmpty(CoordError):
    """The node to delete has children. The operation was not applied."""


class NoChildrenForEphemerals(CoordError):
    """The parent of the node to create is ephemeral, so it cannot have children. The operation was
    not applied."""


class RequestTooLarge(CoordError):
    """The request exceeds the size limit and was not sent. The operation was not applied."""


class SessionExpired(CoordError):
    """The ZooKeeper session has expired, and its ephemeral nodes are deleted. The operation was not
    applied, unless an earlier attempt that ended with ConnectionLoss was applied."""


class ConnectionLoss(CoordError):
    """The connection was lost before the answer arrived. The operation may or may not have been
    applied; to find out, read the node."""


class MultiFailed(CoordError):
    """A multi (operations that are applied together) was refused, and none was applied. `index` is
    the position of the operation that failed, and `cause` its error."""

    def __init__(self, index: int, cause: CoordError) -> None:
        super().__init__(f"operation {index} of the multi failed: {cause!r}")
        self.index = index
        self.cause = cause
