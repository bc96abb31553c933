"""The pages, one module each: KEY, TITLE, `layout(loaded, identity)`, `register(app, context)`."""
