"""Translation of a job resource into the processes that it needs."""
