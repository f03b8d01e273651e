"""``millstream spark``: a Spark cluster on this machine, and faster JVM startup."""
