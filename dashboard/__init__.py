"""The Dash application over analyzer results."""
