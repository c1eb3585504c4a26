"""Consumers of many libraries as members of groups, each a process of its own that writes what it
does into a log of operations (`pybroker.testing.history.ops`), for the judge.

`settings` says what a member is told, `python_members` hosts the Python libraries (Java's and
kafkajs's are `java/GroupMember.java` and `node/member.js`), `members` starts, freezes, kills and
awaits them."""
