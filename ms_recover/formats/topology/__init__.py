"""Where ranks live, as other tools write it: rank tables, logs, lists of hosts, topologies."""
