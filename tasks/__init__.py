"""One Prefect task a phase: order, retries and time-outs only; the work is in `roleagent.loop.phases`."""

from roleagent.policy.threads import limit_spinning

limit_spinning()  # a worker loads a flow by its path, so this is the first package of ours that it imports
