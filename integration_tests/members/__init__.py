"""Consumers of many libraries as group members. Each member is a separate process that writes its
operations to a log (`pybroker.testing.history.ops`) for the checker.

`settings` has a member's settings, `python_members` runs members of Python libraries (the members
of Java and kafkajs are `java/GroupMember.java` and `node/member.js`), and `members` starts, pauses,
kills and awaits members.
"""
