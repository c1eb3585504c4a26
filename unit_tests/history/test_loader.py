"""Tests that the log of operations survives a kill, and every line of it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.testing.history.loader import from_ops, load
from pybroker.testing.history.ops import OpsLog, read_ops
from pybroker.testing.history.values import Identity, make_value, read_value
from unit_tests.history.script import T0, Script, value


def test_the_logs_of_several_processes_are_one_history(tmp_path: Path) -> None:
    text = value(0)
    sender, reader = OpsLog(tmp_path, "one"), OpsLog(tmp_path, "two")
    sender.write("a", "producer", "info", acks=-1, idempotent=True, keeps_order=True)
    sender.write("a", "send", "invoke", tp=T0, v=text)
    reader.write("r", "poll", "ok", tp=T0, recs=[[0, text, 3]], hw=1)
    sender.write("a", "send", "ok", v=text, off=0)
    history = load(tmp_path)  # before anything is closed: each line is there at once
    assert history.sends[text].outcome == "ok"
    assert history.polls[0].records == ((0, text, 3),)
    assert history.sends[text].begun < history.polls[0].at < history.sends[text].ended
    sender.close()
    sender.write("a", "send", "invoke", tp=T0, v=value(1))
    assert len(load(tmp_path).sends) == 1


def test_a_line_cut_off_by_a_kill_is_passed_over_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    log = OpsLog(tmp_path, "one")
    log.write("a", "send", "invoke", tp=T0, v=value(0))
    with log.path.open("a") as file:
        file.write('{"t":1,"w"')
    assert len(list(read_ops(log.path))) == 1
    with log.path.open("a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match=r"one\.ops\.jsonl:2: "):
        list(read_ops(log.path))


def test_an_end_without_a_beginning_a_second_end_and_a_second_beginning_are_refused() -> None:
    script = Script()
    script.add("a", "send", "ok", v=value(0), off=0)
    with pytest.raises(ValueError, match="no line of type invoke"):
        script.history()
    script = Script()
    text = script.send(0, 0)
    script.add("a", "send", "info", v=text, err="again")
    with pytest.raises(ValueError, match="a second outcome"):
        script.history()
    script = Script()
    script.invoke(0)
    script.invoke(0)
    with pytest.raises(ValueError, match="is sent a second time"):
        script.history()


def test_the_end_of_a_commit_may_name_a_later_generation() -> None:
    """A library may have started the next generation before it sent the commit."""
    script = Script()
    for off in (1, 2):
        where = {"group": "g", "tp": T0, "off": off}
        script.add("m", "commit", "invoke", generation=4, **where)
        script.add("m", "commit", "ok", **where, **({"generation": 5} if off == 2 else {}))
    assert [commit.generation for commit in script.history().groups.commits] == [4, 5]


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown operation"):
        from_ops([{"t": 1, "f": "dance"}])


def test_a_value_says_who_sent_it_and_whether_it_is_intact() -> None:
    text = make_value(Identity("p", 3, 17), T0)
    assert read_value(text, T0) == ("p", 3, 17)
    for wrong in (text[:-1], text.replace("17", "18"), "p:3:17", "", "p:3:-1:0", "x" + text):
        with pytest.raises(ValueError, match=r"not a value|checksum"):
            read_value(wrong, T0)
