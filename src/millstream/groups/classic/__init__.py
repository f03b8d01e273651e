"""Classic groups: states, JoinGroup, SyncGroup, LeaveGroup, timeouts."""
