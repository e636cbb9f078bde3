"""What several tests share: the loop without Prefect, prepared child processes, faults, and a tiny environment."""
