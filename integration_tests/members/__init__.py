"""Consumers of many libraries as members of groups, each a process of its own that writes its
operations to a log (`pybroker.testing.history.ops`), for the judge.

`settings` has a member's settings, `python_members` hosts the Python libraries (Java's and
kafkajs's members are `java/GroupMember.java` and `node/member.js`), `members` starts, freezes,
kills and awaits them."""
