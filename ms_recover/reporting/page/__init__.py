"""Self-contained pages for browsers: templates by Jinja2, one style and one script each, nothing loaded."""
