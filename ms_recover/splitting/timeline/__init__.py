"""The timeline of a splitter: a page for browsers, and trace events for trace viewers."""
