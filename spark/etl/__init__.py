"""Jobs: what a topic holds, transformed into tables, exactly once."""
