"""Tables, figures and pages, drawn from the records that a plan names; reads records, never models."""
