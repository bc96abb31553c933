"""Machine models: one data file per chip."""
