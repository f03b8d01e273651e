"""``millstream demo``: broker, generator, Spark pipeline, a killed driver, and checks."""
