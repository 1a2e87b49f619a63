"""ZooKeeper servers: ours (`memory`), and the real one that ships with PySpark, run as a child process (`embedded`)."""
