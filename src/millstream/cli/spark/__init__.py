"""``millstream spark``: a Spark cluster on this machine, and preparing JVM starts."""
