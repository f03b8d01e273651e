"""Opening a log: quickly after a clean shutdown, else with a check from the recovery point on."""
