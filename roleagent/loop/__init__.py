"""One iteration after another: the phases of the loop as plain functions, without an orchestrator."""
