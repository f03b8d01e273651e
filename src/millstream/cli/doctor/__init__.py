"""``millstream doctor``: the command, and its checks of the cluster and the machine."""
