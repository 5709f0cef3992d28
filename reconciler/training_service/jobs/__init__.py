"""From a job resource to the processes that it needs."""
