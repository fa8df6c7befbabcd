"""MindSpore's Ascend target on a machine without an Ascend device: its own compiler, and nothing that runs on a device.

The wheel of MindSpore from PyPI holds the plugin for Ascend. It does not load because the libraries of CANN, which come
with a device, are missing. `libraries.build` makes libraries whose functions do nothing, and MindSpore's simulation
(``MS_SIMULATION_LEVEL=0``) compiles one rank of any world with them. Only that is a stand-in: programs, network,
compiler, files, saving and loading are real.

No graph runs: losses are an int, parameters keep their values, and collectives between steps answer zeros. Hence
`ranks` replaces what ranks exchange by "every rank says the same".
"""
