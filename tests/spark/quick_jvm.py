"""Settings of a JVM that lives for a few tests: it does not optimise what runs a few times only, which took most of its processor time."""

CONF = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
