"""``millstream demo``: broker, generator, pipeline on Spark, a killed driver, and the checks."""
