"""The table of all rules, and the function that applies rules to a history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from pybroker.testing.history import (
    client_rules,
    cluster_rules,
    group_rules,
    keyed_rules,
    promises,
    transaction_rules,
)
from pybroker.testing.history.eras import split
from pybroker.testing.history.model import History, Violation

_NAMED: Final = "losses-named"
Rule = Callable[[History], Iterator[Violation]]

RULES: Final[dict[str, Rule]] = {
    "acked-present": client_rules.acked_present,
    "no-phantom": client_rules.no_phantom,
    "one-value-per-offset": client_rules.one_value_per_offset,
    "duplicates": client_rules.duplicates,
    "producer-order": client_rules.producer_order,
    "consumer-order": client_rules.consumer_order,
    "monotone-watermarks": cluster_rules.monotone_watermarks,
    "read-implies-durable": client_rules.read_implies_durable,
    "replicas-identical": cluster_rules.replicas_identical,
    "epochs": cluster_rules.epochs,
    "clean-elections": cluster_rules.clean_elections,
    "availability": promises.availability,
    "refusal": promises.refusal,
    "admitted-losses": promises.admitted_losses,
    _NAMED: promises.losses_named,
    group_rules.OWNER: group_rules.one_owner,
    group_rules.PROCESSED: group_rules.committed_is_processed,
    group_rules.NEVER_FALLS: group_rules.committed_never_falls,
    group_rules.ASKED: group_rules.committed_was_asked,
    group_rules.STALE: group_rules.stale_member_commits_nothing,
    group_rules.COVERED: group_rules.groups_process_all,
    transaction_rules.ATOMIC: transaction_rules.atomic,
    transaction_rules.READS: transaction_rules.committed_reads,
    transaction_rules.STABLE: transaction_rules.stable_offset,
    transaction_rules.OUTPUT: transaction_rules.offsets_match_output,
    transaction_rules.FENCED: transaction_rules.fenced_writes_nothing,
    keyed_rules.LATEST: keyed_rules.latest_kept,
    keyed_rules.SURVIVORS: keyed_rules.survivors_unchanged,
    keyed_rules.TOMBSTONES: keyed_rules.tombstones_kept,
    keyed_rules.SAME: keyed_rules.replicas_agree,
}
LOSSY: Final = frozenset({"no-phantom", "replicas-identical", "epochs", _NAMED})
"""The names of the rules that hold even if an unclean election, or acks below all, may have lost
records."""
_SHOWN_PER_RULE: Final = 5


def check(history: History, rules: Iterable[str] = tuple(RULES)) -> list[Violation]:
    """Apply the rules named in `rules` to the history, in this order. Return all violations."""
    judged = split(history)
    # A loss receipt must name records that were acknowledged before it. The rule that checks this
    # needs the records from both sides of a receipt, so for it only a topic's deletion ends an era.
    across = split(history, at_losses=False)
    return [
        violation
        for name in rules
        for violation in RULES[name](across if name == _NAMED else judged)
    ]


def report(violations: Sequence[Violation]) -> str:
    """Return a text with the number of violations of each violated rule, and the first few
    violations."""
    counts = Counter(violation.rule for violation in violations)
    shown: Counter[str] = Counter()
    lines = [f"{rule}: {count} violations" for rule, count in counts.items()]
    for violation in violations:
        shown[violation.rule] += 1
        if shown[violation.rule] <= _SHOWN_PER_RULE:
            lines.append(str(violation))
    return "\n".join(lines)


def repeated(history: History) -> int:
    """Return the number of duplicate records from producers without idempotence. These are no
    violations."""
    return sum(
        len(offsets) - 1
        for places in client_rules.offsets_of_values(history).values()
        for value, offsets in places.items()
        if (send := history.sends.get(value)) is not None
        and (facts := history.facts(send.identity)) is not None
        and not facts.idempotent
    )
