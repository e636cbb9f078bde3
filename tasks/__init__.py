"""One Prefect task a phase: order, retries and time-outs only; the work is in `roleagent.loop.phases`."""
