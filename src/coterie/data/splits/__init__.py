"""The splits: functions that say which client gets which rows."""
