"""ZooKeeper through kazoo: the session, requests, multis, and the coordination port over them."""
